//! Pages of other origins, where the server was started for them.

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderName, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::guard::Guard;

/// What tells browsers that pages may read answers; nothing unless some may.
pub(crate) fn layer(guard: &Guard) -> Option<CorsLayer> {
    if guard.origins.is_empty() {
        return None;
    }
    let origins = if guard.is_open() {
        AllowOrigin::any()
    } else {
        let known = guard.origins.clone();
        AllowOrigin::predicate(move |origin, _| {
            origin.to_str().is_ok_and(|origin| known.iter().any(|known| known.eq_ignore_ascii_case(origin)))
        })
    };
    let own = [HeaderName::from_static("x-api-key"), HeaderName::from_static("x-request-id")];
    let headers = [ACCEPT, AUTHORIZATION, CONTENT_TYPE].into_iter().chain(own);
    // Clients send headers of their own besides, which a browser asks about; what is asked about is let in.
    let headers = if guard.is_open() { AllowHeaders::mirror_request() } else { AllowHeaders::list(headers) };
    Some(
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::HEAD, Method::POST])
            .allow_headers(headers)
            .expose_headers([HeaderName::from_static("x-request-id")]),
    )
}
