use serde_json::json;

use super::*;

const PART: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[("text", &[Field::required("text", Shape::Text, "")]), ("none", &[])],
    otherwise: Some("which nobody reads"),
});
const ITEM: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: Some("plain"),
    variants: &[("plain", &[Field::optional("n", Shape::Integer(0, 3), "")]), ("other", &[])],
    otherwise: None,
});
const WHOLE: Shape = closed(&[
    &[
        Field::required(
            "content",
            Shape::Either(
                &[Shape::Text, Shape::List(&PART, 1, 3, "a list of 1 to 3 parts")],
                "a string or parts",
            ),
            "What is said.",
        ),
        Field::optional("items", Shape::List(&ITEM, 0, usize::MAX, "a list of items"), ""),
    ],
    &[
        Field::optional(
            "prompts",
            Shape::Either(
                &[
                    Shape::List(&Shape::Text, 0, 9, "strings"),
                    Shape::List(&Shape::Integer(0, 9), 0, 9, "integers"),
                ],
                "strings or integers",
            ),
            "",
        ),
        Field::optional("kind", Shape::Words(&["a", "b", "c"]), ""),
        Field::optional(
            "bias",
            Shape::Map(
                Some(&Shape::Of("0-9", |c| c.is_ascii_digit(), "an id")),
                &Shape::Number(-1.0, 1.0),
                2,
            ),
            "",
        ),
        Field::optional("any", ANY_OBJECT, ""),
        Field::optional("off", Shape::Is(false), ""),
        Field::optional(
            "inner",
            Shape::Named("Inner", &open(&[&[Field::required("x", Shape::Filled, "")]], "an x")),
            "",
        ),
        Field::refused("suffix", "is not supported"),
    ],
]);

/// Values of the shape, and others with the place and words of what is wrong.
fn values() -> (Vec<Value>, Vec<(Value, &'static str, &'static str)>) {
    let right = vec![
        json!({"content": "x"}),
        json!({"content": [{"type": "text", "text": ""}, {"type": "none", "more": 1}], "kind": null, "suffix": null}),
        json!({"content": "x", "items": [{}, {"type": null, "n": 3.0}, {"type": "other", "n": "free"}]}),
        json!({"content": "x", "prompts": [], "kind": "b", "bias": {"0": 1, "12": -0.5}, "any": {"x": null}}),
        json!({"content": "x", "prompts": [1, 2], "off": false, "inner": {"x": "y", "z": null}}),
    ];
    let wrong = vec![
        (json!([]), "", "must be an object"),
        (json!({}), "content", "must be given: a string or parts"),
        (json!({"content": null}), "content", "must be a string or parts"),
        (json!({"content": []}), "content", "must be a list of 1 to 3 parts"),
        (json!({"content": [{"type": "text"}]}), "content[0].text", "must be given: a string"),
        (json!({"content": [{"type": "none"}, {}]}), "content[1].type", "must be given: 'text' or 'none'"),
        (json!({"content": [{"type": "image"}]}), "content[0].type", "is 'image', which nobody reads"),
        (json!({"content": [7]}), "content[0]", "must be an object with 'type'"),
        (json!({"content": "x", "items": [{"n": 4}]}), "items[0].n", "must be an integer from 0 to 3"),
        (
            json!({"content": "x", "items": [{"type": "x"}]}),
            "items[0].type",
            "is 'x'; use 'plain' or 'other'",
        ),
        (json!({"content": "x", "items": [{"type": 1}]}), "items[0].type", "must be 'plain' or 'other'"),
        (json!({"content": "x", "prompts": [1, "a"]}), "prompts", "must be strings or integers"),
        (json!({"content": "x", "kind": "d"}), "kind", "must be 'a', 'b' or 'c'"),
        (json!({"content": "x", "bias": {"x": 1}}), "bias.x", "must be an id"),
        (json!({"content": "x", "bias": {"1": 2}}), "bias.1", "must be a number from -1 to 1"),
        (
            json!({"content": "x", "bias": {"1": 1, "2": 1, "3": 1}}),
            "bias",
            "must be an object of at most 2 entries whose values are each a number from -1 to 1",
        ),
        (json!({"content": "x", "off": true}), "off", "must be false"),
        (json!({"content": "x", "inner": {"x": ""}}), "inner.x", "must be a string, not empty"),
        (json!({"content": "x", "suffix": ""}), "suffix", "is not supported"),
        (json!({"content": "x", "more": null}), "more", "is no field of this request; leave it out"),
    ];
    (right, wrong)
}

#[test]
fn problems_have_their_place_and_say_what_is_expected() {
    let (right, wrong) = values();
    for value in right {
        assert_eq!(WHOLE.check(&value), Ok(()), "{value}");
    }
    for (value, place, text) in wrong {
        let problem = WHOLE.check(&value).unwrap_err();
        assert_eq!((problem.place().as_str(), problem.text.as_str()), (place, text), "{value}");
    }
}

/// What is checked and what is described is the same.
#[test]
fn a_schema_takes_what_the_shape_takes() {
    let mut components = Components::default();
    let mut schema = WHOLE.schema(&mut components);
    schema["components"] = json!({"schemas": components.into_schemas()});
    let validator = jsonschema::validator_for(&schema).unwrap();
    let (right, wrong) = values();
    for value in right {
        assert!(validator.is_valid(&value), "{value}");
    }
    for (value, place, _) in wrong {
        assert!(!validator.is_valid(&value), "{place}: {value}");
    }
}
