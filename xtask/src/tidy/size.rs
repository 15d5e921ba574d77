use super::Finding;
use super::lexer::Lexed;

const LONGEST: usize = 800;
const P95: usize = 600;

/// How long a source file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Size {
    file: String,
    lines: usize,
    /// Lines that are not tests; 0 in a test file.
    without_tests: usize,
}

impl Size {
    pub(super) fn of(file: &str, text: &str, lexed: &Lexed, in_tests: bool) -> Self {
        let tests = lexed.test.iter().filter(|test| **test).count();
        let lines = text.lines().count();
        let without_tests = if in_tests { 0 } else { lines.saturating_sub(tests) };
        Self { file: file.to_owned(), lines, without_tests }
    }
}

/// No file above 800 lines; 95 of 100 at most 600 without their tests.
pub(super) fn check(sizes: &[Size]) -> Vec<Finding> {
    let long = sizes.iter().filter(|size| size.lines > LONGEST);
    let mut findings: Vec<Finding> = long
        .map(|size| {
            Finding::new(
                &size.file,
                size.lines,
                format!("{} lines, and {LONGEST} is the limit; split it", size.lines),
            )
        })
        .collect();
    if p95(sizes) > P95 {
        let over = sizes.iter().filter(|size| size.without_tests > P95);
        findings.extend(over.map(|size| {
            let message = format!(
                "{} lines without tests, more than {P95}, as too many files are; split it",
                size.without_tests
            );
            Finding::new(&size.file, size.lines, message)
        }));
    }
    findings
}

pub(super) fn summary(sizes: &[Size]) -> String {
    let total: usize = sizes.iter().map(|size| size.lines).sum();
    format!("{} files, {total} lines, p95 {} lines without tests", sizes.len(), p95(sizes))
}

/// The nearest-rank 95th percentile over files that are not tests.
fn p95(sizes: &[Size]) -> usize {
    let mut lines: Vec<usize> = sizes.iter().map(|size| size.without_tests).filter(|&n| n > 0).collect();
    lines.sort_unstable();
    let rank = (lines.len() * 95).div_ceil(100);
    rank.checked_sub(1).map_or(0, |i| lines[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(lines: usize, without_tests: usize) -> Size {
        Size { file: "f.rs".to_owned(), lines, without_tests }
    }

    #[test]
    fn tests_are_not_counted() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(Size::of("f.rs", text, &Lexed::new(text), false), size(4, 1));
        assert_eq!(Size::of("f.rs", text, &Lexed::new(text), true), size(4, 0));
    }

    #[test]
    fn long_files_fail() {
        assert_eq!(check(&[size(800, 100)]), []);
        assert!(check(&[size(801, 100)])[0].message.contains("801 lines"));
    }

    #[test]
    fn many_longish_files_fail_and_a_few_do_not() {
        let mut sizes = vec![size(100, 100); 95];
        sizes.extend(vec![size(700, 700); 5]);
        assert_eq!((p95(&sizes), check(&sizes).len()), (100, 0));
        sizes.push(size(700, 700));
        sizes.push(size(700, 700));
        assert_eq!((p95(&sizes), check(&sizes).len()), (700, 7));
        assert_eq!(p95(&[]), 0);
    }
}
