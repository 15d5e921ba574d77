//! Combinations of chip, system and bundle that others reported to fail or to be slow.

const TABLE: &str = include_str!("../data/known_bad.tsv");

/// A bundle as far as reports speak of such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traits {
    /// Format of its compressed weights, as `lut4`; none when they are fp16.
    pub precision: Option<String>,
    /// States of the package that has most.
    pub states: usize,
    /// Bytes of its largest package's weights.
    pub largest: u64,
}

/// What was reported of a combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What goes wrong.
    pub problem: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Who reported it.
    pub source: &'static str,
    /// `high`, `medium` or `low`.
    pub confidence: &'static str,
}

/// Reports that fit a chip (as `m4max`) and the number of a macOS, and a bundle where one is asked about; what is not known of the machine
/// fits all.
pub fn known_bad(chip: Option<&str>, macos: Option<u64>, bundle: Option<&Traits>) -> Vec<Report> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.filter_map(|line| {
        let [chips, systems, of, problem, remedy, confidence, source] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let of_chip = chips == "*" || chip.is_none_or(|chip| chips.split(',').any(|own| own == chip));
        let of_system = systems == "*"
            || macos.is_none_or(|macos| systems.split(',').any(|own| own.parse() == Ok(macos)));
        (of_chip && of_system && fits(of, bundle)).then_some(Report { problem, remedy, source, confidence })
    })
    .collect()
}

/// Whether a row is of a machine by itself, or of a bundle that is such.
fn fits(of: &str, bundle: Option<&Traits>) -> bool {
    let Some(bundle) = bundle else { return of == "machine" };
    match of.split_once('>') {
        Some(("states", n)) => n.parse().is_ok_and(|n: usize| bundle.states > n),
        Some(("mib", n)) => n.parse().is_ok_and(|n: u64| bundle.largest > n << 20),
        _ => bundle.precision.as_deref().is_some_and(|precision| precision.starts_with(of)),
    }
}

/// The chip of a processor's name, as `m4max` for `Apple M4 Max`; none of another maker's.
pub fn chip_of(processor: &str) -> Option<String> {
    let name = processor.strip_prefix("Apple ")?.to_lowercase();
    Some(name.split_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_by_chip_system_and_bundle() {
        let all = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
        for line in all {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(cells.len() == 7 && cells.iter().all(|cell| !cell.is_empty()), "{line}");
            assert!(["high", "medium", "low"].contains(&cells[5]), "{line}");
        }
        let large = Traits { largest: 3 << 29, ..Traits::default() };
        let told = |macos| known_bad(Some("m4"), Some(macos), Some(&large));
        assert!(told(27)[0].problem.contains("1 GiB") && told(26).is_empty(), "{:?}", told(26));
        let table = Traits { precision: Some("lut4".into()), ..Traits::default() };
        assert!(known_bad(Some("m5"), Some(27), Some(&table))[0].problem.contains("tables"));
        assert!(known_bad(Some("m4"), Some(27), Some(&table)).is_empty());
        let states = Traits { states: 2, ..Traits::default() };
        assert!(known_bad(Some("m4"), Some(26), Some(&states))[0].remedy.contains("--cache io"));
        // Of the machine alone.
        assert!(known_bad(None, None, None).iter().any(|report| report.problem.contains("disk")));
        assert!(known_bad(Some("m4"), Some(26), None).is_empty());
        assert_eq!(chip_of("Apple M4 Max").as_deref(), Some("m4max"));
        assert_eq!(chip_of("AMD EPYC"), None);
    }
}
