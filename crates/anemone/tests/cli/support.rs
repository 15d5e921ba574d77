use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// What a run of the binary gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Insists on success.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The one JSON object on stdout.
    pub(crate) fn json(self) -> Value {
        let ran = self.ok();
        assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Insists on an exit code, an empty stdout and one line of error that holds every fragment.
    pub(crate) fn fails(self, code: i32, fragments: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        for fragment in fragments {
            assert!(self.stderr.contains(fragment), "no {fragment:?} in {}", self.stderr);
        }
    }
}

/// The binary with an environment of its own: no hub, no variables of the user's.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    for name in [
        "HF_ENDPOINT",
        "HF_TOKEN",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command.env("HF_HOME", std::env::temp_dir().join("anemone-no-such-hub"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the binary without input.
pub(crate) fn anemone(args: &[&str]) -> Ran {
    Ran::new(command(args).output().unwrap())
}

/// Runs the binary with text on stdin.
pub(crate) fn anemone_with(input: &[u8], args: &[&str]) -> Ran {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may leave before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    Ran::new(child.wait_with_output().unwrap())
}

/// A test file of this crate.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The demo model's files.
pub(crate) fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/stories-lfm2")
}

/// A directory of the fixtures shared beside the repository, if they are there.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if !path.is_dir() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/{name} is not present");
        return None;
    }
    Some(path)
}

/// A JSON file.
pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A list of ids.
pub(crate) fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

/// Greatest difference of two lists of one length.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// A copy of the demo model that a test may damage.
pub(crate) struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(assets()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        Self { dir }
    }

    pub(crate) fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces text in a file, which must occur.
    pub(crate) fn replace(self, file: &str, from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(self.file(file)).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(self.file(file), text.replace(from, to)).unwrap();
        self
    }

    pub(crate) fn without(self, file: &str) -> Self {
        std::fs::remove_file(self.file(file)).unwrap();
        self
    }

    /// Changes the weights' bytes.
    pub(crate) fn weights(self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let path = self.file("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        self
    }

    /// Puts a bf16 NaN into the first element of a tensor.
    pub(crate) fn with_nan(self, tensor: &str) -> Self {
        self.with(tensor, 0, 0x7fc0)
    }

    /// Puts a bf16 number into an element of a tensor.
    pub(crate) fn with(self, tensor: &str, element: usize, bits: u16) -> Self {
        self.weights(|bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            let at = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 2 * element;
            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        })
    }
}
