//! What is done with a request to a language model before its answer begins: not on the threads that talk to clients, and no longer
//! than a request may take.

use axum::extract::Request;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::deadline::Deadline;
use crate::language::Language;
use crate::openai::fields::Fields;
use crate::openai::refusal::{ApiError, Checked};
use crate::shape::Shape;

/// Lets a request in and reads it, with its model, which may have to be loaded.
///
/// Its permit is held until it was read, also by work that goes on behind the back of a client that left.
pub(crate) async fn read<T: Send + 'static>(
    app: &App,
    request: Request,
    shape: &'static Shape,
    read: impl FnOnce(Fields, Language) -> Checked<T> + Send + 'static,
) -> Checked<T> {
    let (permit, bytes) = app.admit_bytes(request).await?;
    let deadline = app.deadline();
    let (permit, (name, fields)) = aside(permit, deadline, move || {
        let mut fields = Fields::parse(&bytes, shape)?;
        Ok((fields.text("model"), fields))
    })
    .await?;
    let language = app.language(name.as_deref(), deadline).await?;
    let (_permit, done) = aside(permit, deadline, move || read(fields, language)).await?;
    Ok(done)
}

/// Does what takes a moment where that holds nobody up.
async fn aside<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    deadline: Deadline,
    work: impl FnOnce() -> Checked<T> + Send + 'static,
) -> Checked<(OwnedSemaphorePermit, T)> {
    let done = tokio::task::spawn_blocking(move || (permit, work()));
    let (permit, done) = deadline.bound(done).await?.map_err(|_| ApiError::failed())?;
    Ok((permit, done?))
}
