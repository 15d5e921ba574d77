use crate::{Error, Result};

const MAX_STRINGS: usize = 64;
const MAX_LEN: usize = 4096;

/// Watches a stream of text for stop strings.
///
/// Text that could be the beginning of a stop string is held back; a stop string and what follows it never come
/// out. The result does not depend on how the text is cut into pieces: the stop string that is complete first wins,
/// and the longest of those that end there.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    strings: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

/// The stop string that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Its position in the list.
    pub index: usize,
}

impl StopMatcher {
    /// A matcher for up to 64 strings of up to 4096 bytes, none of them empty.
    pub fn new(strings: &[String]) -> Result<Self> {
        let problem = if strings.len() > MAX_STRINGS {
            Some(format!("{} strings given; use at most {MAX_STRINGS}", strings.len()))
        } else if let Some(at) = strings.iter().position(String::is_empty) {
            Some(format!("string {at} is empty; leave it out"))
        } else {
            let at = strings.iter().position(|s| s.len() > MAX_LEN);
            at.map(|at| format!("string {at} is longer than {MAX_LEN} bytes; shorten it"))
        };
        match problem {
            Some(problem) => Err(Error::Options { option: "stop", problem }),
            None => Ok(Self { strings: strings.to_vec(), held: String::new(), stopped: None }),
        }
    }

    /// Takes the next text, appends what is safe to give to `out`, and tells whether a stop string was met.
    ///
    /// After that, further text is ignored.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<Stopped> {
        if let Some(index) = self.stopped {
            return Some(Stopped { index });
        }
        if self.strings.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let met = (self.strings.iter().enumerate())
            .filter_map(|(index, stop)| self.held.find(stop).map(|start| (start + stop.len(), start, index)))
            .min();
        if let Some((_, start, index)) = met {
            out.push_str(&self.held[..start]);
            self.held.clear();
            self.stopped = Some(index);
            return Some(Stopped { index });
        }
        let safe =
            self.held.len() - self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        out.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        None
    }

    /// Appends the text held back to `out`, for a stream that ended otherwise.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`, but not all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at).rev();
    ends.filter(|&len| len <= text.len()).find(|&len| text.ends_with(&stop[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut out = String::new();
        let mut stopped = None;
        for piece in pieces {
            stopped = matcher.push(piece, &mut out).map(|s| s.index);
        }
        matcher.flush(&mut out);
        (out, stopped)
    }

    #[test]
    fn beginnings_are_held_back() {
        let mut matcher = StopMatcher::new(&["</end>".into()]).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("a</e", &mut out), None);
        assert_eq!(out, "a");
        assert_eq!(matcher.push("x</en", &mut out), None);
        assert_eq!(out, "a</ex");
        assert_eq!(matcher.push("d>tail", &mut out), Some(Stopped { index: 0 }));
        assert_eq!(matcher.push("more", &mut out), Some(Stopped { index: 0 }));
        matcher.flush(&mut out);
        assert_eq!(out, "a</ex");
    }

    #[test]
    fn first_complete_then_longest() {
        assert_eq!(run(&["abc", "b"], &["xabc"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), Some(1)));
        assert_eq!(run(&["\n\n", "END"], &["a\n", "b\n", "\nEND"]), ("a\nb".into(), Some(0)));
        assert_eq!(run(&["aab"], &["aa", "aab"]), ("aa".into(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
        assert_eq!(run(&["xyz"], &["wx", "y"]), ("wxy".into(), None));
    }

    #[test]
    fn every_cut_gives_the_same() {
        let cases: [(&str, &[&str]); 4] = [
            ("héllo wörld—日本語 stop日本x", &["日本x", "本語!"]),
            ("aaabaaac", &["aac", "aab", "ba"]),
            ("🙂🙂🚀", &["🙂🚀"]),
            ("no stop here", &["stop!", "here?"]),
        ];
        for (text, stops) in cases {
            let whole = run(stops, &[text]);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(run(stops, &chars.iter().map(String::as_str).collect::<Vec<_>>()), whole);
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                assert_eq!(run(stops, &[&text[..at], &text[at..]]), whole, "{text} {at}");
            }
        }
    }

    #[test]
    fn bad_lists_are_errors() {
        for bad in [vec![String::new()], vec!["x".into(); 65], vec!["x".repeat(5000)]] {
            let e = StopMatcher::new(&bad).unwrap_err().to_string();
            assert!(e.starts_with("stop: "), "{e}");
        }
    }
}
