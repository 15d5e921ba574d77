use std::error::Error as StdError;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use minijinja_contrib::{globals, pycompat};

use super::python::{self, JsonStyle};

/// Steps a rendering may take; also bounds its memory, at 64 bytes a step.
const FUEL: u64 = 8 << 20;
/// A byte of serialised text costs as much as in the engine's own filters.
const BYTES_PER_FUEL: u64 = 4;

/// The environment chat templates are written for: that of the transformers library.
pub(super) fn new() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(pycompat::unknown_method_callback);
    env.set_formatter(print);
    env.set_debug(false);
    env.set_fuel(Some(FUEL));
    env.add_filter("tojson", to_json);
    env.add_filter("string", string);
    env.add_function("raise_exception", raise_exception);
    env.add_function("cycler", globals::cycler);
    env.add_function("joiner", globals::joiner);
    Ok(env)
}

/// The words of `raise_exception`, if that is what went wrong.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(refused) = e.downcast_ref::<Refused>() {
            return Some(refused.0.clone());
        }
        cause = e.source();
    }
    None
}

#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Refused {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refused(message)))
}

fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&python_str(state, value)?).map_err(Error::from),
    }
}

fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => python_str(state, value).map(Value::from),
    }
}

fn python_str(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    python::write_str(value, &mut out)?;
    state.consume_fuel(out.len() as u64 / BYTES_PER_FUEL)?;
    Ok(out)
}

#[allow(clippy::needless_pass_by_value, reason = "the shape of a filter")]
fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let mut style = JsonStyle::default();
    if let Some(indent) = options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        let text = match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(spaces)) => " ".repeat(spaces.clamp(0, 64) as usize),
            (None, None) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: indent must be a number or a string",
                ));
            }
        };
        style.indent = Some(text);
        style.item = ",".into();
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair"))?;
        (style.item, style.key) = (item, key);
    }
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut out = String::new();
    python::write_json(value, &style, &mut out)?;
    state.consume_fuel(out.len() as u64 / BYTES_PER_FUEL)?;
    Ok(out)
}
