//! Shapes of JSON as data: what requests are checked against, and what the description of the routes is written from.

mod schema;

use serde_json::{Map, Value};

pub(crate) use schema::Components;

/// The most an integer without a limit of its own may be.
pub(crate) const MOST: i64 = i64::MAX;

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// Anything but null.
    Any,
    /// True or false.
    Flag,
    /// One of them.
    Is(bool),
    /// A string.
    Text,
    /// A string that is not empty.
    Filled,
    /// A string of these characters, one or more of them: a class of a regular expression, a test, and both in words.
    Of(&'static str, fn(char) -> bool, &'static str),
    /// One of these strings.
    Words(&'static [&'static str]),
    /// A number from one to another.
    Number(f64, f64),
    /// An integer from one to another.
    Integer(i64, i64),
    /// A list of so many at least and at most, and what it is in words.
    List(&'static Shape, usize, usize, &'static str),
    /// An object of any keys, or of keys of such a shape, with values of one shape, at most so many.
    Map(Option<&'static Shape>, &'static Shape, usize),
    /// An object.
    Object(Object),
    /// An object whose keys depend on the value of one of them.
    Tagged(Tagged),
    /// One of several, and what that is in words.
    Either(&'static [Shape], &'static str),
    /// The same under a name of the description.
    Named(&'static str, &'static Shape),
}

/// The keys of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object {
    /// Groups of keys, which several objects may share.
    pub(crate) fields: &'static [&'static [Field]],
    /// Whether it may have others.
    pub(crate) open: bool,
    /// What it is in words.
    pub(crate) expected: &'static str,
}

/// An object whose keys depend on the value of one of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tagged {
    /// The key that decides.
    pub(crate) tag: &'static str,
    /// The value it has when it is not there.
    pub(crate) default: Option<&'static str>,
    /// Values and the keys that go with them; others may be there.
    pub(crate) variants: &'static [(&'static str, &'static [Field])],
    /// What to do about another value, where the list of values does not say enough.
    pub(crate) otherwise: Option<&'static str>,
}

/// A key of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) need: Need,
    pub(crate) shape: Shape,
    /// What it does.
    pub(crate) about: &'static str,
}

/// How a key is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// It must be there.
    Required,
    /// It may be absent, or null.
    Optional,
    /// It may only be absent or null; what it is about says why.
    Refused,
}

impl Field {
    pub(crate) const fn required(name: &'static str, shape: Shape, about: &'static str) -> Self {
        Self { name, need: Need::Required, shape, about }
    }

    pub(crate) const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Self {
        Self { name, need: Need::Optional, shape, about }
    }

    /// A key of others' APIs that is not supported; `why` follows its name in the message.
    pub(crate) const fn refused(name: &'static str, why: &'static str) -> Self {
        Self { name, need: Need::Refused, shape: Shape::Any, about: why }
    }
}

/// An object of these keys and no others.
pub(crate) const fn closed(fields: &'static [&'static [Field]]) -> Shape {
    Shape::Object(Object { fields, open: false, expected: "an object" })
}

/// An object of these keys and perhaps others.
pub(crate) const fn open(fields: &'static [&'static [Field]], expected: &'static str) -> Shape {
    Shape::Object(Object { fields, open: true, expected })
}

/// An object of any keys.
pub(crate) const ANY_OBJECT: Shape = Shape::Map(None, &Shape::Any, usize::MAX);

/// What is wrong with a value, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Steps from the value outwards.
    steps: Vec<Step>,
    pub(crate) text: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl Problem {
    fn new(text: impl Into<String>) -> Self {
        Self { steps: Vec::new(), text: text.into() }
    }

    fn must_be(expected: &str) -> Self {
        Self::new(format!("must be {expected}"))
    }

    fn under(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    fn key(self, key: &str) -> Self {
        self.under(Step::Key(key.to_owned()))
    }

    /// The place, as `messages[0].content`; empty for the whole.
    pub(crate) fn place(&self) -> String {
        let mut place = String::new();
        for step in self.steps.iter().rev() {
            match step {
                Step::Key(key) if place.is_empty() => place.push_str(key),
                Step::Key(key) => place.extend([".", key]),
                Step::Index(index) => place.extend(["[", &index.to_string(), "]"]),
            }
        }
        place
    }
}

/// The integer a number is, also when it is written with a point.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let whole = || number.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as i128);
    number.as_i128().or_else(whole)
}

impl Shape {
    /// What is expected, in words.
    fn expected(&self) -> String {
        match self {
            Self::Any => "a value".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Is(only) => only.to_string(),
            Self::Text => "a string".to_owned(),
            Self::Filled => "a string, not empty".to_owned(),
            Self::Of(_, _, expected) | Self::List(.., expected) | Self::Either(_, expected) => {
                (*expected).to_owned()
            }
            Self::Words([word]) => format!("'{word}'"),
            Self::Words(words) => one_of(words),
            Self::Number(from, to) => format!("a number from {from} to {to}"),
            Self::Integer(i64::MIN, MOST) => "an integer".to_owned(),
            Self::Integer(from, MOST) => format!("an integer, {from} or more"),
            Self::Integer(from, to) => format!("an integer from {from} to {to}"),
            Self::Map(_, value, most) => {
                let few = if *most == usize::MAX {
                    "an object"
                } else {
                    &format!("an object of at most {most} entries")
                };
                if matches!(value, Self::Any) {
                    few.to_owned()
                } else {
                    format!("{few} whose values are each {}", value.expected())
                }
            }
            Self::Object(object) => object.expected.to_owned(),
            Self::Tagged(tagged) => format!("an object with '{}'", tagged.tag),
            Self::Named(_, shape) => shape.expected(),
        }
    }

    /// Whether a value has the type that is described, whatever its parts.
    fn has_type_of(&self, value: &Value) -> bool {
        match self {
            Self::Any => !value.is_null(),
            Self::Flag | Self::Is(_) => value.is_boolean(),
            Self::Text | Self::Filled | Self::Of(..) | Self::Words(_) => value.is_string(),
            Self::Number(..) | Self::Integer(..) => value.is_number(),
            Self::List(..) => value.is_array(),
            Self::Map(..) | Self::Object(_) | Self::Tagged(_) => value.is_object(),
            Self::Either(shapes, _) => shapes.iter().any(|shape| shape.has_type_of(value)),
            Self::Named(_, shape) => shape.has_type_of(value),
        }
    }

    /// Checks a value and all its parts. An optional key may be null.
    pub(crate) fn check(&self, value: &Value) -> Result<(), Problem> {
        let wrong = || Err(Problem::must_be(&self.expected()));
        if !self.has_type_of(value) {
            return wrong();
        }
        match (self, value) {
            (Self::Named(_, shape), _) => shape.check(value),
            (Self::Is(only), Value::Bool(value)) if value != only => wrong(),
            (Self::Filled, Value::String(text)) if text.is_empty() => wrong(),
            (Self::Of(_, allowed, _), Value::String(text))
                if text.is_empty() || !text.chars().all(allowed) =>
            {
                wrong()
            }
            (Self::Words(words), Value::String(text)) if !words.contains(&text.as_str()) => wrong(),
            (Self::Number(from, to), Value::Number(number)) => {
                if number.as_f64().is_some_and(|n| (*from..=*to).contains(&n)) { Ok(()) } else { wrong() }
            }
            (Self::Integer(from, to), _) => {
                let fits = integer(value).is_some_and(|n| (i128::from(*from)..=i128::from(*to)).contains(&n));
                if fits { Ok(()) } else { wrong() }
            }
            (Self::List(each, least, most, _), Value::Array(list)) => {
                if !(*least..=*most).contains(&list.len()) {
                    return wrong();
                }
                list.iter().enumerate().try_for_each(|(index, value)| {
                    each.check(value).map_err(|problem| problem.under(Step::Index(index)))
                })
            }
            (Self::Map(key, each, most), Value::Object(map)) => {
                if map.len() > *most {
                    return wrong();
                }
                map.iter().try_for_each(|(name, value)| {
                    let key = key.map_or(Ok(()), |key| key.check(&Value::from(name.as_str())));
                    // Objects of any values may have nulls.
                    let value = if matches!(each, Self::Any) { Ok(()) } else { each.check(value) };
                    key.and(value).map_err(|problem| problem.key(name))
                })
            }
            (Self::Object(object), Value::Object(map)) => object.check(map),
            (Self::Tagged(tagged), Value::Object(map)) => tagged.check(map),
            (Self::Either(shapes, expected), _) => {
                let mut typed = shapes.iter().filter(|shape| shape.has_type_of(value));
                let first = typed.next().map_or(Ok(()), |shape| shape.check(value));
                match (first, typed.next()) {
                    (Ok(()), _) => Ok(()),
                    // The only one it can have been meant as.
                    (Err(problem), None) => Err(problem),
                    (Err(_), Some(second))
                        if std::iter::once(second).chain(typed).any(|s| s.check(value).is_ok()) =>
                    {
                        Ok(())
                    }
                    _ => Err(Problem::must_be(expected)),
                }
            }
            _ => Ok(()),
        }
    }
}

fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

impl Object {
    fn keys(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().flat_map(|group| group.iter())
    }

    fn check(&self, map: &Map<String, Value>) -> Result<(), Problem> {
        check_fields(self.keys(), map)?;
        let known = |key: &str| self.open || self.keys().any(|field| field.name == key);
        match map.keys().find(|key| !known(key)) {
            Some(key) => Err(Problem::new("is no field of this request; leave it out").key(key)),
            None => Ok(()),
        }
    }
}

fn check_fields<'a>(
    fields: impl Iterator<Item = &'a Field>,
    map: &Map<String, Value>,
) -> Result<(), Problem> {
    for field in fields {
        let result = match (field.need, map.get(field.name)) {
            (Need::Optional | Need::Refused, None | Some(Value::Null)) => Ok(()),
            (Need::Refused, Some(_)) => Err(Problem::new(field.about)),
            (_, Some(value)) => field.shape.check(value),
            (Need::Required, None) => Err(Problem::new(format!("must be given: {}", field.shape.expected()))),
        };
        result.map_err(|problem| problem.key(field.name))?;
    }
    Ok(())
}

impl Tagged {
    fn check(&self, map: &Map<String, Value>) -> Result<(), Problem> {
        let values = || one_of(&self.variants.iter().map(|(value, _)| *value).collect::<Vec<_>>());
        let value = match (map.get(self.tag), self.default) {
            (Some(Value::String(value)), _) => value.as_str(),
            (None | Some(Value::Null), Some(default)) => default,
            (None, None) => return Err(Problem::new(format!("must be given: {}", values())).key(self.tag)),
            _ => return Err(Problem::must_be(&values()).key(self.tag)),
        };
        if let Some((_, fields)) = self.variants.iter().find(|(known, _)| *known == value) {
            return check_fields(fields.iter(), map);
        }
        let text = match self.otherwise {
            Some(otherwise) => format!("is '{value}', {otherwise}"),
            None => format!("is '{value}'; use {}", values()),
        };
        Err(Problem::new(text).key(self.tag))
    }
}

#[cfg(test)]
mod tests;
