use std::time::{Duration, Instant};

use crate::openai::refusal::{ApiError, Checked};

/// When a request must have ended, if ever.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// So far from now.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Waits for something up to the deadline; 504 afterwards.
    pub(crate) async fn bound<T>(self, awaited: impl Future<Output = T>) -> Checked<T> {
        match self.0 {
            None => Ok(awaited.await),
            Some(deadline) => {
                tokio::time::timeout_at(deadline.into(), awaited).await.map_err(|_| ApiError::late())
            }
        }
    }
}
