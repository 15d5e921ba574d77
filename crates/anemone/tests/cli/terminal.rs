//! On a terminal, which the `script` tool of util-linux plays.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::command;

/// The binary on a terminal of its own, ended by force after a while.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn open(args: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let plain = command(args);
        let words: Vec<String> = std::iter::once(plain.get_program())
            .chain(plain.get_args())
            .map(|word| format!("'{}'", word.to_str().unwrap()))
            .collect();
        let mut script = Command::new("timeout");
        // A shell that stayed in between would take Ctrl-C as well and end with a code of its own.
        script.args(["30", "script", "-qec", &format!("exec {}", words.join(" ")), "/dev/null"]);
        script.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let available = Command::new("script").arg("--version").stdout(Stdio::null()).status();
        if !available.is_ok_and(|status| status.success()) {
            // Not `eprintln!`, which the test runner swallows.
            let _ = writeln!(std::io::stderr(), "skipped: no `script` tool");
            return None;
        }
        let mut child = script.spawn().unwrap();
        let (keys, screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, keys, screen, seen: String::new() })
    }

    /// Waits for text on the screen and forgets what came before its end.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                return self.seen.drain(..at + text.len()).collect();
            }
            let mut bytes = [0; 4096];
            let read = self.screen.read(&mut bytes).unwrap();
            assert!(read > 0, "no {text:?} in {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// What is shown up to the end, and the exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).unwrap();
        (self.seen + &String::from_utf8_lossy(&rest), self.child.wait().unwrap().code())
    }
}

#[test]
fn a_chat_at_the_keyboard() {
    let args = ["chat", "--greedy", "--exact", "--ignore-eos", "-n", "1900"];
    let Some(mut terminal) = Terminal::open(&args, &[]) else { return };
    terminal.wait_for("/help for commands");
    terminal.wait_for("> ");
    terminal.press("tell me a story about a dog.\r");
    terminal.wait_for("once upon a time");
    // Ctrl-C ends the answer and not the chat.
    terminal.press("\x03");
    terminal.wait_for("prefill 21 tok");
    let line = terminal.wait_for(" ctx ");
    let decoded = line.split("decode ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(decoded.parse::<usize>().unwrap() < 1900, "{line}");
    terminal.wait_for("> ");
    terminal.press("/nope\r");
    terminal.wait_for("\x1b[1;31merror\x1b[0m: /nope: no such command");
    terminal.wait_for("> ");
    terminal.press("\x04");
    assert_eq!(terminal.end().1, Some(0));
}

#[test]
fn no_color_is_obeyed() {
    let args = ["run", "--model", "./nope", "-p", "a"];
    let Some(coloured) = Terminal::open(&args, &[]) else { return };
    let (screen, code) = coloured.end();
    assert!(screen.contains("\x1b[1;31merror\x1b[0m: --model ./nope") && code == Some(1), "{screen:?}");
    let Some(plain) = Terminal::open(&args, &[("NO_COLOR", "1")]) else { return };
    let (screen, code) = plain.end();
    assert!(screen.starts_with("error: --model ./nope") && !screen.contains('\x1b'), "{screen:?}");
    assert_eq!(code, Some(1));
}
