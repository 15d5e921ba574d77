use std::fs;
use std::path::Path;

use super::{Joules, Meter};

const ROOT: &str = "/sys/class/powercap";

/// Energy as Linux tells it: the counters of RAPL under `/sys/class/powercap`, where this user may read them.
pub(super) struct Rapl;

impl Meter for Rapl {
    fn source(&self) -> &'static str {
        "RAPL"
    }

    fn joules(&mut self) -> Joules {
        under(Path::new(ROOT))
    }
}

/// Counters of the zones under a directory, by name.
fn under(root: &Path) -> Joules {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut zones: Joules = entries
        .flatten()
        .filter_map(|entry| {
            let zone = entry.path();
            // `intel-rapl:0` is a package, `intel-rapl:0:1` a part of it; AMD's processors use the same names.
            entry.file_name().to_str()?.starts_with("intel-rapl:").then_some(())?;
            let name = fs::read_to_string(zone.join("name")).ok()?;
            let count: u64 = fs::read_to_string(zone.join("energy_uj")).ok()?.trim().parse().ok()?;
            let number = entry.file_name().to_str()?.split(':').nth(1)?.to_owned();
            let name = name.trim();
            let name = if name.starts_with("package") { name.to_owned() } else { format!("{name}-{number}") };
            Some((name, count as f64 / 1e6))
        })
        .collect();
    zones.sort_by(|a, b| a.0.cmp(&b.0));
    zones
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name_and_what_cannot_be_read_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let zone = |at: &str, name: &str, count: Option<&str>| {
            let zone = dir.path().join(at);
            fs::create_dir(&zone).unwrap();
            fs::write(zone.join("name"), name).unwrap();
            if let Some(count) = count {
                fs::write(zone.join("energy_uj"), count).unwrap();
            }
        };
        zone("intel-rapl:0", "package-0\n", Some("2500000\n"));
        zone("intel-rapl:0:0", "core\n", Some("1000000\n"));
        zone("intel-rapl:0:1", "dram\n", None);
        zone("intel-rapl:1", "package-1\n", Some("nonsense"));
        zone("dtpm", "other\n", Some("1"));
        assert_eq!(under(dir.path()), [("core-0".to_owned(), 1.0), ("package-0".to_owned(), 2.5)]);
        assert!(under(&dir.path().join("none")).is_empty());
    }
}
