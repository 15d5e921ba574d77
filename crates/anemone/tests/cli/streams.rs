use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::command;

#[test]
fn a_closed_pipe_ends_quietly() {
    let cases: [&[&str]; 4] = [
        &["run", "--seed", "1", "-n", "100", "-q"],
        &["forward", "--text", "once", "--json"],
        &["inspect", "--tensors"],
        &["run", "--help"],
    ];
    for args in cases {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line() {
    let cases: [&[&str]; 6] = [
        &["run", "--seed", "1", "-n", "10", "-q"],
        &["forward", "--text", "once"],
        &["inspect", "--json"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ];
    for args in cases {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?} {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.starts_with("error: cannot write to stdout") && stderr.contains("No space left"),
            "{stderr}"
        );
    }
}

#[test]
fn no_colour_unless_on_a_terminal() {
    for value in ["", "1"] {
        let output = command(&["run", "--model", "./nope"]).env("NO_COLOR", value).output().unwrap();
        assert!(output.stderr.starts_with(b"error: ") && !output.stderr.contains(&0x1b), "{output:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_keeps_what_there_is() {
    use std::process::Command;
    let args = ["run", "-p", "once upon a time", "--greedy", "--ignore-eos", "-n", "1900", "--exact"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // Once there is text, the generation has begun.
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let line = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{line}");
    assert!(rest.ends_with('\n') && line.starts_with("prefill 5 tok"), "{line}");
}
