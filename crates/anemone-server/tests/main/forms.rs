//! Forms of bodies, and what clients that make tokens themselves ask first.

use anemone_server::{Key, Options};
use anemone_session::BatchOptions;
use axum::body::Body;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{demo, post, runtime, send};

const ASK: &str =
    r#"{"state":"i lost my card","questions":{"q":{"type":"noul","instructions":"A card is lost."}}}"#;

#[test]
fn a_compressed_body_is_answered_as_itself() {
    let app = demo(Options::default());
    let packed = zstd::encode_all(ASK.as_bytes(), 3).unwrap();
    runtime().block_on(async {
        let plain = post(&app, "/v1/systemone", ASK).await;
        let zstd = [("content-encoding", "zstd")];
        let answer = send(&app, "POST", "/v1/systemone", &zstd, Body::from(packed.clone())).await;
        assert_eq!((answer.status, &answer.text), (StatusCode::OK, &plain.text));
        let cut = send(&app, "POST", "/v1/systemone", &zstd, Body::from(packed[..20].to_vec())).await;
        assert_eq!(cut.status, StatusCode::BAD_REQUEST);
        assert_eq!(cut.detail(), "request body is not valid zstd");
        let bomb = zstd::encode_all(std::io::Read::take(std::io::repeat(b' '), 1 << 28), 3).unwrap();
        let large = send(&app, "POST", "/v1/systemone", &zstd, Body::from(bomb)).await;
        assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
        for (name, value, body, told) in [
            ("content-encoding", "gzip", ASK, "send the body as it is, or zstd"),
            (
                "content-type",
                "multipart/form-data; boundary=x",
                "--x\r\n",
                "say in words what an image shows",
            ),
        ] {
            let mut request = axum::http::Request::builder().method("POST").uri("/v1/systemone");
            request = request.header(name, value);
            let request = request.body(Body::from(body)).unwrap();
            let response = tower::ServiceExt::oneshot(app.routes(), request).await.unwrap();
            assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
            let text = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
            assert!(String::from_utf8_lossy(&text).contains(told), "{text:?}");
        }
    });
}

#[test]
fn the_tokenizer_says_what_prompts_of_tokens_need() {
    let app = crate::language::app(BatchOptions::default());
    runtime().block_on(async {
        let answer = send(&app, "GET", "/tokenizer_info", &[], Body::empty()).await;
        assert_eq!(answer.status, StatusCode::OK);
        let info: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(info["model"], "stories");
        assert_eq!(info["model_max_length"], 512);
        assert_eq!(info["vocab_size"], 2048);
        assert!(info["chat_template"].as_str().unwrap().contains("messages"));
        // The texts it names are tokens.
        for token in ["bos_token", "eos_token", "pad_token"] {
            let asked = json!({"prompt": info[token], "add_special_tokens": false});
            let tokens: Value =
                serde_json::from_str(&post(&app, "/tokenize", asked.to_string()).await.text).unwrap();
            assert_eq!(tokens["count"], 1, "{token}: {tokens}");
        }
    });
    let app = demo(Options { key: Some(Key::new("sesame").unwrap()), ..Options::default() });
    runtime().block_on(async {
        let refused = send(&app, "GET", "/tokenizer_info", &[], Body::empty()).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        let key = [("authorization", "Bearer sesame")];
        let none = send(&app, "GET", "/tokenizer_info", &key, Body::empty()).await;
        assert_eq!(none.status, StatusCode::NOT_FOUND);
    });
}
