//! The arithmetic an emulator computes in, as data.

mod effects;
mod round;
mod table;

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use anemone_mil::DataType;

pub(crate) use effects::Effects;
pub(crate) use round::{Ties, fp16_of};
pub(crate) use table::{Curve, Tables};

use crate::Error;

/// The profiles that are built in: their names and files.
const BUILT_IN: [(&str, &str); 4] = [
    ("f32", include_str!("../profiles/f32.toml")),
    ("fp16", include_str!("../profiles/fp16.toml")),
    ("m1", include_str!("../profiles/m1.toml")),
    ("m4", include_str!("../profiles/m4.toml")),
];
/// Most bytes of a profile's file.
const FILE: u64 = 1 << 20;

/// The arithmetic an emulator computes in: a name and the effects that are on, each of which can be switched alone.
///
/// Effects act where a program declares fp16. A profile is a TOML file with `name`, `about` and a table for each effect, which names
/// its `source`; those built in are `f32`, `fp16`, `m1` and `m4`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    name: String,
    effects: Effects,
    tables: Tables,
}

/// How large sums may get in a profile, and how small products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Magnitude from which a sum of products is infinite.
    pub overflow: Option<f32>,
    /// Magnitude below which products may be dropped.
    pub dropped: Option<f32>,
}

impl Default for Profile {
    fn default() -> Self {
        Self::fp16()
    }
}

impl Profile {
    /// Everything is computed and kept in f32, whatever type the program declares.
    pub fn f32() -> Self {
        Self { name: "f32".into(), effects: Effects::default(), tables: Tables::default() }
    }

    /// Inputs and the result of every operation are rounded to fp16 where the program declares fp16; sums inside an operation
    /// are f32.
    pub fn fp16() -> Self {
        Self { name: "fp16".into(), effects: Effects::rounding(Ties::Even), ..Self::f32() }
    }

    /// The profile of a command line: a built-in name, or the path of a file (which has a `/` or ends in `.toml`), and then any
    /// number of `,-EFFECT` and `,+EFFECT`, in order, which switch what the file has; `all` is every effect.
    pub fn open(spec: &str) -> Result<Self, Error> {
        let (base, changes) = match spec.find(",-").into_iter().chain(spec.find(",+")).min() {
            Some(at) => (&spec[..at], &spec[at + 1..]),
            None => (spec, ""),
        };
        let is_file = base.contains(['/', std::path::MAIN_SEPARATOR])
            || Path::new(base).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"));
        let mut profile = if is_file { Self::read(Path::new(base))? } else { Self::built_in(base)? };
        if changes.is_empty() {
            return Ok(profile);
        }
        let given = profile.effects.clone();
        for change in changes.split(',') {
            let on = change.starts_with('+');
            let effect = change.strip_prefix(['+', '-']).ok_or_else(|| {
                Error::Profile(format!("`{spec}`: put + or - before `{change}` to switch it on or off"))
            })?;
            profile
                .effects
                .switch(effect, on, &given)
                .map_err(|problem| Error::Profile(format!("`{spec}`: `{effect}` {problem}")))?;
        }
        spec.clone_into(&mut profile.name);
        profile.finish().map_err(|problem| Error::Profile(format!("`{spec}`: {problem}")))
    }

    fn built_in(name: &str) -> Result<Self, Error> {
        let Some((_, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) else {
            let names: Vec<&str> = BUILT_IN.iter().map(|(n, _)| *n).collect();
            return Err(Error::Profile(format!(
                "`{name}` is none of {}, nor a file: those have a / in their path or end in .toml",
                names.join(", ")
            )));
        };
        Self::from_toml(text)
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let error = |problem: String| Error::Profile(format!("{}: {problem}", path.display()));
        let file = std::fs::File::open(path).map_err(|e| error(e.to_string()))?;
        let mut text = String::new();
        file.take(FILE + 1).read_to_string(&mut text).map_err(|e| error(e.to_string()))?;
        if text.len() as u64 > FILE {
            return Err(error("is no profile, which has a few kilobytes".into()));
        }
        Self::from_toml(&text).map_err(|e| match e {
            Error::Profile(problem) => error(problem),
            other => other,
        })
    }

    /// Reads a profile's file.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        let effects: Effects = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            Error::Profile(format!("line {line}: {}", e.message().lines().collect::<Vec<_>>().join("; ")))
        })?;
        let profile = Self { name: effects.name.clone(), effects, tables: Tables::default() };
        profile.finish().map_err(Error::Profile)
    }

    /// Checks the effects and makes their tables.
    fn finish(mut self) -> Result<Self, String> {
        self.effects.check()?;
        self.tables = Tables::new(&self.effects)?;
        Ok(self)
    }

    /// What it is called on a command line, effects switched included.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is the arithmetic of, in a line.
    pub fn about(&self) -> &str {
        &self.effects.about
    }

    /// The names of those built in.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.into_iter().map(|(name, _)| name)
    }

    /// The effects that are on, each with its source.
    pub fn effects(&self) -> Vec<(&'static str, &str)> {
        self.effects.on()
    }

    /// What a sum of `terms` products has room for.
    pub fn limits(&self, terms: usize) -> Limits {
        self.effects.limits(terms)
    }

    pub(crate) fn data(&self) -> &Effects {
        &self.effects
    }

    pub(crate) fn table(&self, op: &str) -> Option<&Curve> {
        self.tables.get(op)
    }

    /// Rounds values declared as `dtype` in place.
    pub fn round(&self, dtype: DataType, values: &mut [f32]) {
        if dtype != DataType::Float16 {
            return;
        }
        if self.effects.non_finite.is_some() {
            for v in values.iter_mut() {
                *v = if v.is_nan() { f32::INFINITY } else { *v };
            }
        }
        match self.effects.ties() {
            Some(Ties::Even) => {
                for v in values {
                    *v = round::to_even(*v);
                }
            }
            Some(Ties::Away) => {
                for v in values {
                    *v = round::away(*v);
                }
            }
            None => {}
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::open(s)
    }
}

#[cfg(test)]
mod tests;
