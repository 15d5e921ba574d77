use super::*;

#[test]
fn those_built_in_read_and_name_their_sources() {
    for name in Profile::names() {
        let profile: Profile = name.parse().unwrap();
        assert_eq!((profile.name(), profile.to_string().as_str()), (name, name));
        assert!(!profile.about().is_empty());
        assert!(profile.effects().iter().all(|(_, source)| source.len() > 20), "{name}");
    }
    let on = |spec: &str| -> Vec<&'static str> {
        spec.parse::<Profile>().unwrap().effects().into_iter().map(|(effect, _)| effect).collect()
    };
    assert!(on("f32").is_empty());
    assert_eq!(on("fp16"), ["fp16-rounding"]);
    assert_eq!(
        on("m1"),
        ["fp16-rounding", "small-products", "wide-reduction", "overflow", "activation-tables"]
    );
    let m4 = ["fp16-rounding", "fixed-point", "product-drop", "overflow", "non-finite", "activation-tables"];
    assert_eq!(on("m4"), m4);
    // What code makes is what the files say.
    assert_eq!(Profile::f32().effects.ties(), "f32".parse::<Profile>().unwrap().effects.ties());
    assert_eq!(Profile::fp16().effects.ties(), "fp16".parse::<Profile>().unwrap().effects.ties());
    // Each alone, and all but each.
    for effect in m4 {
        assert_eq!(on(&format!("m4,-all,+{effect}")), [effect]);
        let rest: Vec<_> = m4.into_iter().filter(|e| *e != effect).collect();
        assert_eq!(on(&format!("m4,-{effect}")), rest);
    }
    assert_eq!(on("m4,-all,+all"), m4);
    assert_eq!("m4,-overflow".parse::<Profile>().unwrap().name(), "m4,-overflow");
}

#[test]
fn files_are_profiles_too_and_say_what_is_wrong_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let open = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Profile::open(path.to_str().unwrap()).map_err(|e| e.to_string())
    };
    let head = "name = \"mine\"\nabout = \"a test\"\n";
    let drop = format!("{head}[product-drop]\nexponent-sum = -17\nsource = \"a test\"\n");
    assert_eq!(open(&drop).unwrap().effects(), [("product-drop", "a test")]);
    let changed = Profile::open(&format!("{},-product-drop", path.display())).unwrap();
    assert!(changed.effects().is_empty());
    let table = |rest: &str| {
        format!(
            "{head}[activation-tables]\nsource = \"s\"\n[[activation-tables.table]]\n{rest}\nnodes = \"exact\"\n"
        )
    };
    let wrong = [
        ("name = 1".to_owned(), "line 1: invalid type: integer"),
        (head.replace("about", "abuot"), "line 2: unknown field `abuot`"),
        ("name = \"x\"".into(), "missing field `about`"),
        (format!("{head}[product-drop]\nexponent-sum = -17"), "missing field `source`"),
        (
            format!("{head}[fixed-point]\nfraction-bits = 40\nsource = \"\""),
            "`fixed-point.fraction-bits` is 40; it must be from 1 to 24",
        ),
        (
            format!("{head}[overflow]\nlimit = -1\nsource = \"\""),
            "`overflow.limit` is -1; it must be a number above 0",
        ),
        (format!("{head}[fp16-rounding]\nties = \"up\"\nsource = \"\""), "unknown variant `up`"),
        (format!("{head}[wide-reduction]\nabove = -1\nbelow = -11\nsource = \"\""), "line 4: invalid value"),
        (
            table("op = \"relu\"\nfrom = 0.0\nto = 1.0\npoints = 3"),
            "of `relu`: there is no table of it; give one of sigmoid",
        ),
        (table("op = \"silu\"\nfrom = 1.0\nto = 1.0\npoints = 3"), "`from` 1 must be below `to` 1"),
        (
            table("op = \"silu\"\nfrom = 0.0\nto = 1.0\npoints = 99999"),
            "`points` is 99999; it must be from 2 to 4097",
        ),
        (table("op = \"tanh\"\nfrom = -1.0\nto = 1.0\npoints = 3"), "begins at 0"),
        (table("op = \"exp\"\nfrom = 0.0\nto = 2.0\npoints = 3"), "2^f with f from 0 to 1"),
        ("# ".repeat(1 << 20), "is no profile"),
    ];
    for (text, expected) in wrong {
        let error = open(&text).unwrap_err();
        assert!(
            error.starts_with("profile ") && error.contains("mine.toml") && error.contains(expected),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let error = |spec: &str| spec.parse::<Profile>().unwrap_err().to_string();
    assert!(error("f64").starts_with("profile `f64` is none of f32, fp16, m1, m4, nor a file"));
    assert!(error("fp16,-drop").contains("`drop` is no effect; those are fp16-rounding, fixed-point"));
    assert!(error("fp16,+fixed-point").contains("`fixed-point` is not in this profile"));
    assert!(error("m4,-overflow,x").contains("put + or - before `x`"));
    assert!(error("no/such.toml").contains("no/such.toml"));
}

#[test]
fn only_what_is_declared_half_is_rounded() {
    let mut v = [1.0001, 2049.0];
    Profile::f32().round(DataType::Float16, &mut v);
    Profile::fp16().round(DataType::Float32, &mut v);
    assert_eq!(v, [1.0001, 2049.0]);
    Profile::fp16().round(DataType::Float16, &mut v);
    assert_eq!(v, [1.0, 2048.0]);
    let mut v = [2049.0, f32::NAN];
    "m4".parse::<Profile>().unwrap().round(DataType::Float16, &mut v);
    assert_eq!(v, [2050.0, f32::INFINITY]);
}

#[test]
fn limits_are_those_of_the_effects_that_are_on() {
    let limits = |spec: &str, terms| spec.parse::<Profile>().unwrap().limits(terms);
    assert_eq!(limits("f32", 10), Limits { overflow: None, dropped: None });
    assert_eq!(limits("fp16", 10), Limits { overflow: Some(65520.0), dropped: None });
    // The largest product of exponents that add up to -17 is just below 2^-15.
    assert_eq!(limits("m4", 10), Limits { overflow: Some(32768.0), dropped: Some(f32::powi(2.0, -15)) });
    assert_eq!(limits("m1", 4096).dropped, Some(f32::powi(2.0, -14)));
    assert_eq!(limits("m1", 4097).dropped, Some(f32::powi(2.0, -11)));
    assert_eq!(limits("m1,-small-products", 4096).dropped, None);
    assert_eq!(limits("m1,-overflow", 1).overflow, Some(65520.0));
}

/// Bytes of a profile from outside: any change of them is a profile or an error, and what is a profile computes.
#[test]
fn damaged_files_are_refused_or_work() {
    let (_, text) = BUILT_IN[3];
    let mut state = 1u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut read, mut refused) = (0, 0);
    for _ in 0..2000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = b"0123456789.-e[]\"="[next(17)],
                1 => drop(bytes.drain(at..(at + next(40)).min(bytes.len()))),
                2 => bytes.insert(at, b'9'),
                _ => bytes[at] ^= 1 << next(7),
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        match Profile::from_toml(&text) {
            Ok(profile) => {
                read += 1;
                for x in [0.0, -1e-8, 3.3, -70000.0, f32::INFINITY, f32::NAN] {
                    for op in ["sigmoid", "tanh", "exp", "gelu", "silu"] {
                        let _ = profile.table(op).map(|t| t.at(x));
                    }
                }
                let _ = profile.limits(5000);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}
