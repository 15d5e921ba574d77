use std::fs;

/// Memory of this process in bytes, as far as the system tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rss {
    /// Resident in all.
    pub(crate) total: Option<u64>,
    /// Private memory.
    pub(crate) anon: Option<u64>,
    /// Mapped files.
    pub(crate) file: Option<u64>,
}

/// Memory of this process now.
pub(crate) fn rss() -> Rss {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Rss { total: kib(&status, "VmRSS:"), anon: kib(&status, "RssAnon:"), file: kib(&status, "RssFile:") }
}

/// Bytes of memory the system has, and those it could give.
pub(crate) fn memory() -> (Option<u64>, Option<u64>) {
    if cfg!(target_os = "macos") {
        let said = std::process::Command::new("sysctl").args(["-n", "hw.memsize"]).output().ok();
        return (said.and_then(|said| String::from_utf8_lossy(&said.stdout).trim().parse().ok()), None);
    }
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (kib(&info, "MemTotal:"), kib(&info, "MemAvailable:"))
}

/// The processor's name and its physical cores.
pub(crate) fn processor() -> (Option<String>, Option<usize>) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |line: &str, key: &str| {
        line.strip_prefix(key)
            .and_then(|rest| rest.trim_start().strip_prefix(':'))
            .map(|v| v.trim().to_owned())
    };
    let name = info.lines().find_map(|line| value(line, "model name"));
    let mut cores = Vec::new();
    let mut socket = String::new();
    for line in info.lines() {
        if let Some(id) = value(line, "physical id") {
            socket = id;
        } else if let Some(id) = value(line, "core id") {
            cores.push((socket.clone(), id));
        }
    }
    cores.sort_unstable();
    cores.dedup();
    (name, Some(cores.len()).filter(|&n| n > 0))
}

/// The chosen setting of transparent huge pages.
pub(crate) fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split('[').nth(1)?.split(']').next()?;
    Some(chosen.to_owned())
}

/// Threads the system lets run at once.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Bytes for people: `34.1 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (34 << 20, "34.0 MiB"), (5 << 40, "5.0 TiB")];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn lines_of_proc() {
        let text = "VmPeak:\t  9 kB\nVmRSS:\t  120 kB\n";
        assert_eq!(kib(text, "VmRSS:"), Some(120 << 10));
        assert_eq!(kib(text, "RssAnon:"), None);
    }
}
