//! `/openapi.json`: what all routes take and give, written from the shapes requests are checked with and the types of answers.

mod decisions;
mod own;
mod systemone;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::openai::{chat, completions, refusal, responses, tokens};
use crate::requests;
use crate::shape::{Components, Shape};
use crate::{anthropic, metrics, tokenizer_info};

/// How a route tells of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errors {
    OpenAi,
    Anthropic,
    Detail,
}

/// What a route takes.
#[derive(Clone, Copy)]
enum Takes {
    /// Nothing.
    Nothing,
    /// An id in its path.
    Id,
    /// A body of a shape that it is checked with.
    Body(&'static Shape),
    /// A body whose schema is written down beside the checks.
    Other(fn(&mut Components, Facts<'_>) -> Value),
}

/// What a route gives.
#[derive(Clone, Copy)]
enum Gives {
    /// JSON.
    Json(fn(&mut Writer) -> Value),
    /// JSON, or events where 'stream' is true, of which the last may be a word.
    Streamed(fn(&mut Writer) -> Value, fn(&mut Writer) -> Value, Option<&'static str>),
    /// Text of this kind.
    Text(&'static str),
}

/// A route.
struct Route {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    takes: Takes,
    gives: Gives,
    errors: Errors,
    /// Statuses of its own, beside those all like it have.
    statuses: &'static [u16],
}

/// Schemas as they are written.
struct Writer {
    components: Components,
    types: SchemaGenerator,
}

impl Writer {
    /// The schema of a type of answers.
    fn of<T: JsonSchema>(&mut self) -> Value {
        self.types.subschema_for::<T>().into()
    }
}

const fn post(
    path: &'static str,
    about: &'static str,
    shape: &'static Shape,
    gives: Gives,
    errors: Errors,
) -> Route {
    let takes = Takes::Body(shape);
    Route {
        method: "post",
        path,
        about,
        takes,
        gives,
        errors,
        statuses: &[400, 404, 408, 413, 415, 500, 503, 504],
    }
}

const fn get(path: &'static str, about: &'static str, gives: Gives, statuses: &'static [u16]) -> Route {
    Route { method: "get", path, about, takes: Takes::Nothing, gives, errors: Errors::Detail, statuses }
}

const ROUTES: &[Route] = &[
    post(
        "/v1/chat/completions",
        "Answers a conversation, in the shape of OpenAI's API.",
        &requests::chat::REQUEST,
        Gives::Streamed(
            Writer::of::<chat::reply::ChatCompletion<'_>>,
            Writer::of::<chat::reply::ChatChunk<'_>>,
            Some("[DONE]"),
        ),
        Errors::OpenAi,
    ),
    post(
        "/v1/completions",
        "Goes on from a text, in the shape of OpenAI's API.",
        &requests::completions::REQUEST,
        Gives::Streamed(
            Writer::of::<completions::reply::Reply<'_>>,
            Writer::of::<completions::reply::Chunk<'_>>,
            Some("[DONE]"),
        ),
        Errors::OpenAi,
    ),
    post(
        "/v1/responses",
        "Answers a conversation, in the newer shape of OpenAI's API. Nothing is kept.",
        &requests::responses::REQUEST,
        Gives::Streamed(
            Writer::of::<responses::reply::Reply<'_>>,
            Writer::of::<responses::reply::Numbered<'_>>,
            None,
        ),
        Errors::OpenAi,
    ),
    post(
        "/v1/messages",
        "Answers a conversation, in the shape of Anthropic's API.",
        &requests::messages::REQUEST,
        Gives::Streamed(
            Writer::of::<anthropic::reply::Reply<'_>>,
            Writer::of::<anthropic::reply::Event<'_>>,
            None,
        ),
        Errors::Anthropic,
    ),
    post(
        "/v1/messages/count_tokens",
        "Tells the tokens of a conversation, in the shape of Anthropic's API.",
        &requests::messages::COUNT,
        Gives::Json(Writer::of::<anthropic::reply::TokenCount>),
        Errors::Anthropic,
    ),
    post(
        "/tokenize",
        "Tells the tokens of a text, or of a conversation.",
        &requests::tokens::TOKENIZE,
        Gives::Json(Writer::of::<tokens::Tokens>),
        Errors::OpenAi,
    ),
    post(
        "/detokenize",
        "Tells the text of tokens.",
        &requests::tokens::DETOKENIZE,
        Gives::Json(Writer::of::<tokens::Text>),
        Errors::OpenAi,
    ),
    Route {
        method: "post",
        path: "/v1/decisions",
        about: "Decides questions about an input, in the shape of OpenAI's API.",
        takes: Takes::Other(decisions::request),
        gives: Gives::Json(decisions::reply),
        errors: Errors::OpenAi,
        statuses: &[400, 404, 408, 413, 415, 500, 503, 504],
    },
    Route {
        method: "post",
        path: "/v1/systemone",
        about: "Decides questions about a state, as laya's own server does.",
        takes: Takes::Other(systemone::request),
        gives: Gives::Json(systemone::reply),
        errors: Errors::Detail,
        statuses: &[400, 404, 408, 413, 415, 422, 500, 503, 504],
    },
    Route {
        method: "post",
        path: "/v1/systemone/batch",
        about: "Decides the same questions about several states.",
        takes: Takes::Other(systemone::batch_request),
        gives: Gives::Json(systemone::batch_reply),
        errors: Errors::Detail,
        statuses: &[400, 404, 408, 413, 415, 422, 500, 503, 504],
    },
    get("/v1/models", "Lists the models.", Gives::Json(own::models), &[]),
    Route {
        takes: Takes::Id,
        errors: Errors::OpenAi,
        ..get(
            "/v1/models/{id}",
            "Tells of a model, by its name or another it goes by.",
            Gives::Json(own::model),
            &[404],
        )
    },
    get(
        "/health",
        "Tells whether there are models that can answer and, to who has a valid key where one is needed, which are here and which failed.",
        Gives::Json(own::health),
        &[503],
    ),
    Route {
        errors: Errors::OpenAi,
        ..get(
            "/tokenizer_info",
            "What clients that make prompts of tokens themselves have to know of the first language model.",
            Gives::Json(Writer::of::<tokenizer_info::TokenizerInfo<'_>>),
            &[404, 500, 503, 504],
        )
    },
    get(
        "/ready",
        "Tells whether requests are taken, and which models failed.",
        Gives::Json(own::ready),
        &[503],
    ),
    get(
        "/metrics",
        "What was done and how long it took, in the text format of OpenMetrics.",
        Gives::Text(metrics::FORMAT),
        &[500],
    ),
    get("/metrics.json", "The same as JSON, with rates.", Gives::Json(own::figures), &[]),
    get(
        "/openapi.json",
        "This description; not there without a valid key, where one is needed.",
        Gives::Json(own::description),
        &[404],
    ),
];

/// What a description depends on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Whether requests must show a key.
    pub has_key: bool,
    /// Whether choices among many labels are held in rounds.
    pub has_tournaments: bool,
    /// Names of the language models, by which requests may call them; the first one answers where none is named.
    pub languages: &'a [&'a str],
}

/// The answer of `/openapi.json`.
pub(crate) fn answer(facts: Facts<'_>) -> Response {
    ([(CONTENT_TYPE, "application/json")], description(facts).to_string()).into_response()
}

/// The description of a server in the form of `OpenAPI` 3.1, as it gives it at `/openapi.json`.
pub fn description(facts: Facts<'_>) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut writer = Writer { components: Components::default(), types: settings.into_generator() };
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = route.operation(facts, &mut writer);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation;
    }
    // Referred to by name.
    let _ = (writer.of::<refusal::ErrorReply<'_>>(), writer.of::<anthropic::reply::ErrorReply<'_>>());
    let mut components = writer.components;
    for (name, schema) in writer.types.take_definitions(true) {
        components.add(&name, schema);
    }
    components.add("Detail", own::detail());
    let mut described = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "anemone",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models in the shapes of OpenAI's and Anthropic's APIs, and typed decisions.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components.into_schemas()},
    });
    if facts.has_key {
        described["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
    }
    described
}

impl Errors {
    fn schema(self) -> Value {
        let name = match self {
            Self::OpenAi => "Error",
            Self::Anthropic => "MessageError",
            Self::Detail => "Detail",
        };
        json!({"$ref": format!("#/components/schemas/{name}")})
    }
}

/// What a status other than 200 means.
fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is not what the route takes.",
        401 => "The key is missing or wrong.",
        404 => "The model, or what is asked for, is not here.",
        408 => "The body did not arrive in time.",
        413 => "The request is larger than the server takes.",
        403 => "The Host or Origin header names a machine or page that is not let in.",
        415 => "The Content-Encoding, or a form, is not read.",
        422 => "A value cannot be answered.",
        500 => "The model failed.",
        503 => "There is no room at the moment.",
        504 => "It took longer than a request may.",
        _ => "It is refused.",
    }
}

impl Route {
    fn operation(&self, facts: Facts<'_>, writer: &mut Writer) -> Value {
        let mut operation = json!({"operationId": self.id(), "summary": self.about});
        match self.takes {
            Takes::Nothing => {}
            Takes::Id => {
                operation["parameters"] = json!([{
                    "name": "id", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1},
                }]);
            }
            Takes::Body(shape) => {
                let mut schema = shape.schema(&mut writer.components);
                if !facts.languages.is_empty() && schema["properties"].get("model").is_some() {
                    schema["properties"]["model"]["examples"] = json!(facts.languages);
                }
                operation["requestBody"] = body(&schema);
            }
            Takes::Other(schema) => operation["requestBody"] = body(&schema(&mut writer.components, facts)),
        }
        operation["responses"] = self.responses(facts, writer);
        let open = matches!(self.path, "/health" | "/ready");
        if facts.has_key {
            let mut security = vec![json!({"bearer": []}), json!({"header": []})];
            if open {
                security.push(json!({}));
            }
            operation["security"] = security.into();
        }
        operation
    }

    fn responses(&self, facts: Facts<'_>, writer: &mut Writer) -> Value {
        let content = match self.gives {
            Gives::Json(schema) => json!({"application/json": {"schema": schema(writer)}}),
            Gives::Streamed(whole, event, last) => json!({
                "application/json": {"schema": whole(writer)},
                "text/event-stream": {"schema": events(&event(writer), last)},
            }),
            Gives::Text(kind) => {
                let mut content = Map::new();
                content.insert(kind.to_owned(), json!({"schema": {"type": "string"}}));
                Value::Object(content)
            }
        };
        let mut responses = Map::new();
        responses.insert("200".to_owned(), json!({"description": "The answer.", "content": content}));
        let mut statuses = self.statuses.to_vec();
        if facts.has_key && !matches!(self.path, "/health" | "/ready" | "/openapi.json") {
            statuses.push(401);
        }
        statuses.push(403);
        statuses.sort_unstable();
        statuses.dedup();
        for status in statuses {
            let mut response = json!({
                "description": meaning(status),
                "content": {"application/json": {"schema": self.errors.schema()}},
            });
            if status == 503 {
                let seconds = json!({"description": "Seconds to wait.", "schema": {"type": "integer"}});
                response["headers"] = json!({"Retry-After": seconds});
            }
            responses.insert(status.to_string(), response);
        }
        Value::Object(responses)
    }

    /// A name for clients that are made from the description.
    fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.fold(self.method.to_owned(), |id, word| format!("{id}_{word}"))
    }
}

/// Server-sent events: data is JSON of this kind, or a last word.
fn events(schema: &Value, last: Option<&str>) -> Value {
    let json = json!({"type": "string", "contentMediaType": "application/json", "contentSchema": schema});
    let data = match last {
        Some(word) => json!({"anyOf": [{"const": word}, json]}),
        None => json,
    };
    json!({"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]})
}

fn body(schema: &Value) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

#[cfg(test)]
mod tests;
