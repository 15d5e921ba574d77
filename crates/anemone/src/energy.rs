//! Energy that parts of the machine take: read where the system tells it, and told for each phase of the work.

mod rapl;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anemone_session::{Event, Generation};
use serde_json::{Value, json};

use crate::output;

/// Joules by part of the machine.
pub(crate) type Joules = Vec<(String, f64)>;

/// What tells energy.
pub(crate) trait Meter: Send {
    /// Where it has it from.
    fn source(&self) -> &'static str;

    /// Joules each part of the machine took since some moment in the past, by name; none where the machine does not tell.
    ///
    /// A counter may begin anew when it is full, after minutes or hours.
    fn joules(&mut self) -> Joules;
}

/// The machine's own meter.
fn own() -> Box<dyn Meter> {
    #[cfg(target_vendor = "apple")]
    if let Some(energy) = anemone_coreml::Energy::open() {
        return Box::new(energy);
    }
    Box::new(rapl::Rapl)
}

#[cfg(target_vendor = "apple")]
impl Meter for anemone_coreml::Energy {
    fn source(&self) -> &'static str {
        "IOReport"
    }

    fn joules(&mut self) -> Joules {
        Self::joules(self)
    }
}

/// A meter for those who do not ask.
struct Nothing;

impl Meter for Nothing {
    fn source(&self) -> &'static str {
        "nothing"
    }

    fn joules(&mut self) -> Joules {
        Joules::new()
    }
}

/// [`Meter::joules`] of this machine.
pub(crate) fn joules() -> Joules {
    static METER: OnceLock<Mutex<Box<dyn Meter>>> = OnceLock::new();
    METER.get_or_init(|| Mutex::new(own())).lock().unwrap_or_else(PoisonError::into_inner).joules()
}

/// Time for which the machine is watched at rest.
const REST: Duration = Duration::from_millis(500);

/// What the machine took in phases of the work. It tells nothing where the meter does not.
pub(crate) struct Watch {
    meter: Box<dyn Meter>,
    /// The machine at rest.
    idle: Option<Phase>,
    at: (Instant, Joules),
    phases: Vec<Phase>,
}

/// A part of the work, all of its times together.
#[derive(Debug, Clone, PartialEq)]
struct Phase {
    name: String,
    seconds: f64,
    tokens: usize,
    joules: Joules,
}

impl Phase {
    fn watts(&self) -> Joules {
        self.joules.iter().map(|(part, joules)| (part.clone(), joules / self.seconds.max(1e-9))).collect()
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("phases", &self.phases).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches this machine, at rest first, where that is asked for; says when it tells no energy.
    pub(crate) fn begin(asked: bool) -> Self {
        if !asked {
            return Self::with(Box::new(Nothing), || ());
        }
        let watch = Self::with(own(), || std::thread::sleep(REST));
        if watch.idle.is_none() {
            output::note(
                "--energy: this system tells no energy (on Linux, energy_uj under /sys/class/powercap must be readable)",
            );
        }
        watch
    }

    fn with(mut meter: Box<dyn Meter>, rest: impl FnOnce()) -> Self {
        let before = meter.joules();
        let mut watch = Self { meter, idle: None, at: (Instant::now(), before), phases: Vec::new() };
        if !watch.at.1.is_empty() {
            rest();
            watch.mark("idle", 0);
            watch.idle = watch.phases.pop();
        }
        watch
    }

    /// What follows is of the next phase, and what went before of none.
    pub(crate) fn skip(&mut self) {
        self.at = (Instant::now(), self.meter.joules());
    }

    /// Ends a phase in which so many tokens were computed; phases of one name add up.
    pub(crate) fn mark(&mut self, name: &str, tokens: usize) {
        let now = (Instant::now(), self.meter.joules());
        let seconds = now.0.duration_since(self.at.0).as_secs_f64();
        // A counter that began anew tells nothing of this phase.
        let took = |(part, joules): &(String, f64)| {
            let before = self.at.1.iter().find(|(known, _)| known == part)?.1;
            (*joules >= before).then(|| (part.clone(), joules - before))
        };
        let joules: Joules = now.1.iter().filter_map(took).collect();
        self.at = now;
        if joules.is_empty() {
            return;
        }
        match self.phases.iter_mut().find(|phase| phase.name == name) {
            Some(phase) => {
                phase.seconds += seconds;
                phase.tokens += tokens;
                for (part, more) in joules {
                    match phase.joules.iter_mut().find(|(known, _)| *known == part) {
                        Some((_, sum)) => *sum += more,
                        None => phase.joules.push((part, more)),
                    }
                }
            }
            None => self.phases.push(Phase { name: name.to_owned(), seconds, tokens, joules }),
        }
    }

    /// Forgets the phases, and not the machine at rest.
    pub(crate) fn clear(&mut self) {
        self.phases.clear();
    }

    /// A part's joules in a phase above those it takes at rest; none where rest was not told.
    fn above(&self, phase: &Phase, part: &str, joules: f64) -> Option<f64> {
        let rest = self.idle.as_ref()?.watts().into_iter().find(|(known, _)| known == part)?.1;
        Some((joules - rest * phase.seconds).max(0.0))
    }

    /// All of it, with the windows it was measured in; none where nothing was told.
    pub(crate) fn report(&self) -> Option<Value> {
        if self.phases.is_empty() {
            return None;
        }
        let object =
            |parts: &Joules| -> Value { parts.iter().map(|(part, n)| (part.clone(), json!(n))).collect() };
        let phase = |phase: &Phase| {
            let above: Joules = (phase.joules.iter())
                .filter_map(|(part, joules)| Some((part.clone(), self.above(phase, part, *joules)?)))
                .collect();
            let each = |parts: &Joules, by: f64| -> Joules {
                parts.iter().map(|(part, n)| (part.clone(), n / by)).collect()
            };
            let tokens = phase.tokens as f64;
            json!({
                "phase": phase.name,
                "seconds": phase.seconds,
                "tokens": phase.tokens,
                "joules": object(&phase.joules),
                "watts": object(&phase.watts()),
                "joules_above_idle": object(&above),
                "watts_above_idle": object(&each(&above, phase.seconds.max(1e-9))),
                "joules_per_token": (phase.tokens > 0).then(|| object(&each(&phase.joules, tokens))),
                "joules_per_token_above_idle": (phase.tokens > 0).then(|| object(&each(&above, tokens))),
            })
        };
        let idle = self.idle.as_ref();
        Some(json!({
            "source": self.meter.source(),
            "idle": idle.map(|idle| json!({"seconds": idle.seconds, "watts": object(&idle.watts())})),
            "phases": self.phases.iter().map(phase).collect::<Vec<_>>(),
        }))
    }

    /// A line for people: of each phase the part that took most, raw and above rest; none where nothing was told.
    pub(crate) fn line(&self) -> Option<String> {
        if self.phases.is_empty() {
            return None;
        }
        let mut line = format!("energy ({}", self.meter.source());
        if let Some(idle) = &self.idle {
            let _ = write!(line, ", rest watched for {:.1} s", idle.seconds);
        }
        line.push(')');
        for phase in &self.phases {
            for (part, joules) in &phase.joules {
                let _ = write!(line, " · {} {part} {:.2} W", phase.name, joules / phase.seconds.max(1e-9));
                if let Some(above) = self.above(phase, part, *joules) {
                    let _ = write!(line, " ({:.2} W above rest)", above / phase.seconds.max(1e-9));
                }
                if phase.tokens > 0 {
                    let _ = write!(line, " {:.4} J/token", joules / phase.tokens as f64);
                }
            }
            let _ = write!(line, " in {:.2} s", phase.seconds);
        }
        Some(line)
    }
}

/// Tells the phases of a generation apart as it goes on.
#[derive(Debug)]
pub(crate) struct Phases<'a> {
    watch: &'a mut Watch,
    decodes: bool,
}

impl<'a> Phases<'a> {
    pub(crate) fn new(watch: &'a mut Watch) -> Self {
        watch.clear();
        watch.skip();
        Self { watch, decodes: false }
    }

    pub(crate) fn on_event(&mut self, event: &Event<'_>) {
        if matches!(event, Event::Token { .. }) && !self.decodes {
            self.decodes = true;
            self.watch.mark("prefill", 0);
        }
    }

    pub(crate) fn end(self, generation: &Generation) {
        let (name, tokens) =
            if self.decodes { ("decode", generation.timings.decode_tokens) } else { ("prefill", 0) };
        self.watch.mark(name, tokens);
        if let Some(phase) = self.watch.phases.iter_mut().find(|phase| phase.name == "prefill") {
            phase.tokens = generation.timings.prefill_tokens;
        }
    }
}
