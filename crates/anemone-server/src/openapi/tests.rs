use std::collections::BTreeSet;

use super::*;

const FACTS: Facts<'static> = Facts { has_key: true, has_tournaments: false, languages: &["stories"] };

/// Methods and paths of the routes of the app, from its source, in which they are written one to a line.
fn routes() -> BTreeSet<(String, String)> {
    let lines = include_str!("../app.rs").lines().filter_map(|line| line.trim().strip_prefix(".route(\""));
    lines
        .map(|line| {
            let (path, rest) = line.split_once("\", ").unwrap();
            let (method, _) = rest.split_once('(').unwrap();
            (method.to_owned(), path.replace("{*id}", "{id}"))
        })
        .collect()
}

#[test]
fn every_route_is_described_and_no_other() {
    let described = description(FACTS);
    let paths = described["paths"].as_object().unwrap().iter();
    let described: BTreeSet<(String, String)> = paths
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |m| (m.clone(), path.clone()))
        })
        .collect();
    assert!(routes().len() > 10, "the routes could not be read");
    assert_eq!(described, routes());
}

#[test]
fn what_is_referred_to_is_there() {
    fn visit<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| visit(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| visit(value, found)),
            _ => {}
        }
    }
    let described = description(FACTS);
    let mut found = Vec::new();
    visit(&described, &mut found);
    assert!(found.len() > 50);
    for place in found {
        let pointer = place.strip_prefix('#').unwrap();
        assert!(described.pointer(pointer).is_some_and(Value::is_object), "{place}");
    }
}

#[test]
fn keys_are_described_where_they_are_needed() {
    let open = description(Facts { has_key: false, ..FACTS });
    assert!(open["components"].get("securitySchemes").is_none());
    let post = &open["paths"]["/v1/chat/completions"]["post"];
    assert!(post.get("security").is_none() && post["responses"].get("401").is_none());
    let locked = description(FACTS);
    let post = &locked["paths"]["/v1/chat/completions"]["post"];
    assert_eq!(post["security"], json!([{"bearer": []}, {"header": []}]));
    assert!(post["responses"]["401"].is_object());
    assert_eq!(locked["paths"]["/health"]["get"]["security"], json!([{"bearer": []}, {"header": []}, {}]));
}
