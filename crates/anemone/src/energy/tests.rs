use super::*;

/// A meter that tells what it is given.
struct Fake(std::vec::IntoIter<Joules>);

impl Meter for Fake {
    fn source(&self) -> &'static str {
        "fake"
    }

    fn joules(&mut self) -> Joules {
        self.0.next().unwrap_or_default()
    }
}

fn watch(told: &[&[(&str, f64)]]) -> Watch {
    let all: Vec<Joules> =
        told.iter().map(|parts| parts.iter().map(|(part, n)| ((*part).to_owned(), *n)).collect()).collect();
    Watch::with(Box::new(Fake(all.into_iter())), || ())
}

#[test]
fn phases_add_up_and_rest_is_taken_off() {
    let mut watch = watch(&[
        &[("cpu", 10.0), ("ane", 1.0)],
        &[("cpu", 11.0), ("ane", 1.0)],
        &[("cpu", 20.0), ("ane", 1.5)],
        &[("cpu", 24.0), ("ane", 2.5)],
        &[("cpu", 30.0), ("ane", 5.0)],
        // One began anew.
        &[("cpu", 2.0), ("ane", 6.0)],
    ]);
    watch.skip();
    watch.mark("prefill", 8);
    watch.mark("decode", 4);
    watch.mark("decode", 1);
    // Times are set, so that what follows from them is known.
    watch.idle.as_mut().unwrap().seconds = 0.5;
    watch.phases[0].seconds = 1.0;
    watch.phases[1].seconds = 2.0;
    let report = watch.report().unwrap();
    assert_eq!((&report["source"], &report["idle"]["watts"]["cpu"]), (&json!("fake"), &json!(2.0)));
    let prefill = &report["phases"][0];
    assert_eq!((&prefill["joules"]["cpu"], &prefill["joules_above_idle"]["cpu"]), (&json!(4.0), &json!(2.0)));
    assert_eq!(prefill["joules_per_token"]["cpu"], 0.5);
    let decode = &report["phases"][1];
    assert_eq!((&decode["tokens"], &decode["seconds"]), (&json!(5), &json!(2.0)));
    assert_eq!((&decode["joules"]["cpu"], &decode["joules"]["ane"]), (&json!(6.0), &json!(3.5)));
    assert_eq!((&decode["watts"]["ane"], &decode["watts_above_idle"]["cpu"]), (&json!(1.75), &json!(1.0)));
    assert_eq!(decode["joules_per_token_above_idle"]["ane"], 0.7);
    let line = watch.line().unwrap();
    assert!(
        line.contains("rest watched for 0.5 s")
            && line.contains("prefill cpu 4.00 W (2.00 W above rest) 0.5000 J/token"),
        "{line}"
    );
    watch.clear();
    assert_eq!((watch.report(), watch.line()), (None, None));
}

#[test]
fn a_machine_that_tells_nothing_is_not_watched() {
    let mut watch =
        Watch::with(Box::new(Fake(Vec::new().into_iter())), || panic!("there is nothing to watch"));
    watch.skip();
    watch.mark("decode", 4);
    assert_eq!((watch.report(), watch.line()), (None, None));
}
