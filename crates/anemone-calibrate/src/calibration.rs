use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anemone_cpu::Observe;
use anemone_kernels::Context;
use anemone_palettize::Factor;

use crate::{Error, Moments};

/// Runs the model over all of the calibration text, with the inputs of its maps shown to the observer.
pub type Run = Box<dyn FnMut(Observe) -> Result<(), Error> + Send>;

/// What is added to the diagonal of moments, in parts of its mean: text is finite, and a direction it never took is not worthless.
const DAMPING: f64 = 0.01;

/// The moments of a model's inputs, found when they are asked for.
///
/// All of them at once can take more memory than the model. So they are found for as many inputs as fit, those that come next in a
/// pass, and the text is run again when others are asked for.
pub struct Calibration {
    inner: Mutex<Inner>,
    threads: usize,
}

struct Inner {
    run: Run,
    /// Bytes of moments held at a time.
    budget: usize,
    inputs: Vec<Inputs>,
    /// Place of each map's input among them.
    places: BTreeMap<String, usize>,
    held: BTreeMap<usize, Moments>,
    /// The latest factor, with its input and columns.
    latest: Option<(usize, Range<usize>, Arc<Factor>)>,
    runs: usize,
}

/// An input in the order of a pass.
#[derive(Debug, Clone, Copy)]
struct Inputs {
    features: usize,
    tokens: u64,
}

impl Inputs {
    fn bytes(self) -> usize {
        4 * self.features * self.features
    }
}

impl Calibration {
    /// Runs the text once to see which inputs there are. `budget`: bytes of moments held at a time; one input's are held at least.
    pub fn new(mut run: Run, budget: usize, threads: usize) -> Result<Self, Error> {
        let found = Arc::new(Mutex::new((Vec::<Inputs>::new(), BTreeMap::<String, usize>::new())));
        let seen = Arc::clone(&found);
        run(Box::new(move |names, tokens, x| {
            let Some(name) = names.first().filter(|_| tokens > 0) else { return };
            let (inputs, places) = &mut *lock(&seen);
            let place = places.get(*name).copied().unwrap_or(inputs.len());
            if place == inputs.len() {
                inputs.push(Inputs { features: x.len() / tokens, tokens: 0 });
                places.extend(names.iter().map(|name| ((*name).to_owned(), place)));
            }
            inputs[place].tokens += tokens as u64;
        }))?;
        let (inputs, places) = std::mem::take(&mut *lock(&found));
        if inputs.is_empty() {
            return Err(Error::NoTokens);
        }
        let held = BTreeMap::new();
        let inner = Inner { run, budget, inputs, places, held, latest: None, runs: 1 };
        Ok(Self { inner: Mutex::new(inner), threads })
    }

    /// Most tokens a map saw.
    pub fn tokens(&self) -> u64 {
        lock(&self.inner).inputs.iter().map(|i| i.tokens).max().unwrap_or(0)
    }

    /// Names of the maps' weights that the text met, in the order of a pass; those that share an input by name.
    pub fn maps(&self) -> Vec<String> {
        let inner = lock(&self.inner);
        let mut maps: Vec<(usize, &String)> =
            inner.places.iter().map(|(name, place)| (*place, name)).collect();
        maps.sort();
        maps.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Times the text was run.
    pub fn runs(&self) -> usize {
        lock(&self.inner).runs
    }

    /// The factor of the moments of `columns` of a map's input; `None` when the text never met the map.
    pub fn factor(&self, tensor: &str, columns: Range<usize>) -> Result<Option<Arc<Factor>>, Error> {
        let mut inner = lock(&self.inner);
        let Some(place) = inner.places.get(tensor).copied() else { return Ok(None) };
        if let Some((of, range, factor)) = &inner.latest
            && (*of, range) == (place, &columns)
        {
            return Ok(Some(Arc::clone(factor)));
        }
        let context = Context::new(self.threads);
        let moments = inner.moments(place, &context)?.shrunk(columns.clone());
        let factor = Factor::new(&moments, columns.len(), DAMPING, &context)
            .map_err(|source| Error::Factor { tensor: tensor.to_owned(), source })?;
        let factor = Arc::new(factor);
        inner.latest = Some((place, columns, Arc::clone(&factor)));
        Ok(Some(factor))
    }

    /// What an error of each of `columns` of a map costs, the moments' diagonal damped; `None` when the text never met the map.
    pub fn importance(&self, tensor: &str, columns: Range<usize>) -> Result<Option<Vec<f32>>, Error> {
        let mut inner = lock(&self.inner);
        let Some(place) = inner.places.get(tensor).copied() else { return Ok(None) };
        let moments = inner.moments(place, &Context::new(self.threads))?;
        let each: Vec<f32> = columns.map(|i| moments.of_columns(i..i + 1)[0]).collect();
        let mean = each.iter().map(|v| f64::from(*v)).sum::<f64>() / each.len() as f64;
        let damping = if mean > 0.0 { (DAMPING * mean) as f32 } else { 1.0 };
        Ok(Some(each.into_iter().map(|v| v + damping).collect()))
    }
}

impl Inner {
    /// The moments of an input, found together with those of as many that follow it as fit.
    fn moments(&mut self, place: usize, context: &Context) -> Result<&Moments, Error> {
        if !self.held.contains_key(&place) {
            self.held.clear();
            self.latest = None;
            let mut left = self.budget;
            let mut until = place;
            while until < self.inputs.len() && (until == place || self.inputs[until].bytes() <= left) {
                left = left.saturating_sub(self.inputs[until].bytes());
                until += 1;
            }
            let fresh = (place..until).map(|i| (i, Moments::new(self.inputs[i].features)));
            let sums = Arc::new(Mutex::new(fresh.collect::<BTreeMap<usize, Moments>>()));
            let (adding, places) = (Arc::clone(&sums), self.places.clone());
            let adder = Context::new(context.pool().threads());
            (self.run)(Box::new(move |names, _, x| {
                let adding = &mut *lock(&adding);
                let place = names.first().and_then(|name| places.get(*name));
                if let Some(moments) = place.and_then(|place| adding.get_mut(place)) {
                    moments.add(x, &adder);
                }
            }))?;
            self.held = std::mem::take(&mut *lock(&sums));
            self.runs += 1;
        }
        Ok(&self.held[&place])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calibration")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two inputs of 3 and 2 features, the first met by two maps; two passes of one and two tokens.
    fn run() -> Run {
        Box::new(|mut observe| {
            observe(&["q", "k"], 1, &[1.0, 2.0, 3.0]);
            observe(&["down"], 1, &[5.0, 0.0]);
            observe(&["q", "k"], 2, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
            observe(&["down"], 2, &[1.0, 1.0, 0.0, 2.0]);
            Ok(())
        })
    }

    #[test]
    fn moments_are_found_a_part_at_a_time() {
        let wide = Calibration::new(run(), 1 << 20, 1).unwrap();
        // The second input does not fit beside the first.
        let tight = Calibration::new(run(), 4 * 9, 2).unwrap();
        for calibration in [&wide, &tight] {
            assert_eq!(calibration.tokens(), 3);
            assert_eq!(calibration.maps(), ["k", "q", "down"]);
            let [q, k, down] = ["q", "k", "down"].map(|name| {
                let n = if name == "down" { 2 } else { 3 };
                calibration.factor(name, 0..n).unwrap().unwrap()
            });
            assert!(Arc::ptr_eq(&q, &k), "one input, one factor");
            assert_eq!(down.len(), 2);
            // Three tokens of three features: half of what two have in common is believed. A hundredth of the mean is added.
            let shrunk = [2.0, 1.0, 1.5, 1.0, 5.0, 3.0, 1.5, 3.0, 9.0];
            let expected = Factor::new(&shrunk, 3, 0.01, &Context::new(1)).unwrap();
            assert_eq!(format!("{q:?}"), format!("{expected:?}"));
            let importance = calibration.importance("k", 1..3).unwrap().unwrap();
            // 1 + 4 and 9, and a hundredth of their mean.
            assert_eq!(importance, [5.07, 9.07]);
            assert!(calibration.factor("absent", 0..3).unwrap().is_none());
        }
        assert_eq!((wide.runs(), tight.runs()), (2, 4));
    }

    #[test]
    fn text_without_tokens_is_refused() {
        let error = Calibration::new(Box::new(|_| Ok(())), 1, 1).unwrap_err();
        assert!(error.to_string().contains("no token"));
        let failed = Calibration::new(Box::new(|_| Err(Error::Run("the engine stopped".into()))), 1, 1);
        assert_eq!(failed.unwrap_err().to_string(), "the engine stopped");
    }
}
