use anemone_server::{Key, Options};
use axum::body::Body;
use axum::http::StatusCode;

use crate::support::{demo, runtime, send};

#[test]
fn the_page_is_there_for_everyone_and_says_what_it_may_do() {
    let key = Some(Key::new("sesame").unwrap());
    let app = demo(Options { key, ..Options::default() });
    runtime().block_on(async {
        let page = send(&app, "GET", "/", &[], Body::empty()).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.text.starts_with("<!doctype html>"));
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
        let tag = page.header("etag").unwrap();
        let again = send(&app, "GET", "/", &[("if-none-match", tag)], Body::empty()).await;
        assert_eq!((again.status, again.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
        assert_eq!(again.header("etag"), Some(tag));
        let head = send(&app, "HEAD", "/", &[], Body::empty()).await;
        assert_eq!((head.status, head.text.as_str()), (StatusCode::OK, ""));
        let length = page.text.len().to_string();
        assert_eq!(head.header("content-length"), Some(length.as_str()));
        for (path, kind) in [
            ("/page/app.js", "text/javascript; charset=utf-8"),
            ("/page/style.css", "text/css; charset=utf-8"),
            ("/page/icon.svg", "image/svg+xml"),
            ("/page/presets.json", "application/json"),
        ] {
            let file = send(&app, "GET", path, &[], Body::empty()).await;
            assert_eq!((file.status, file.header("content-type")), (StatusCode::OK, Some(kind)), "{path}");
        }
        let post = send(&app, "POST", "/", &[], Body::empty()).await;
        assert_eq!(post.status, StatusCode::METHOD_NOT_ALLOWED);
        for path in ["/page", "/page/", "/page/app.rs", "/page/../app.js", "/index.html"] {
            assert_eq!(
                send(&app, "GET", path, &[], Body::empty()).await.status,
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    });
}
