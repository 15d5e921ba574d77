use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Ran, anemone, anemone_with, assets, data};

/// What becomes of a file's bytes; the file's place among them is given too.
type Damage = Box<dyn Fn(usize, &[u8]) -> Vec<u8>>;

/// Tokens of a block.
const BLOCK: u64 = 128;

/// A text of some 600 tokens, and the same with another end.
fn texts() -> (String, String) {
    let story = fs::read_to_string(data("stories-lfm2/validation.txt")).unwrap();
    let story: String = story.split_whitespace().take(500).fold(String::new(), |mut text, word| {
        let _ = write!(text, "{word} ");
        text
    });
    (format!("{story}the cat"), format!("{story}the dog said"))
}

fn blocks(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files
}

fn cached(run: &Value) -> u64 {
    run["usage"]["cached_tokens"].as_u64().unwrap()
}

/// One generation without a cache, or with one.
fn run(text: &str, dir: Option<&Path>, more: &[&str]) -> Ran {
    let mut args = vec!["run", "--prompt", text, "--greedy", "-n", "12", "--json"];
    if let Some(dir) = dir {
        args.extend(["--prefix-cache", dir.to_str().unwrap()]);
    }
    args.extend(more);
    anemone(&args)
}

#[test]
fn a_later_run_begins_behind_what_an_earlier_one_computed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("prefixes");
    let (cat, dog) = texts();
    let plain = run(&cat, None, &[]).json();
    let first = run(&cat, Some(&at), &[]).json();
    let second = run(&cat, Some(&at), &[]);
    assert!(second.stderr.contains(" held)"), "{}", second.stderr);
    let second = second.json();
    let prompt = plain["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 4 * BLOCK, "{prompt}");
    assert_eq!((cached(&plain), cached(&first), cached(&second)), (0, 0, (prompt - 1) / BLOCK * BLOCK));
    assert_eq!(second["timings"]["prefill_tokens"].as_u64().unwrap(), prompt - cached(&second));
    for run in [&first, &second] {
        assert_eq!(run["token_ids"], plain["token_ids"]);
    }
    let other = run(&dog, Some(&at), &[]).json();
    assert!(cached(&other) >= prompt - 2 * BLOCK, "{other}");
    assert_eq!(other["token_ids"], run(&dog, None, &[]).json()["token_ids"]);
    // Another arithmetic is another state, and another model too.
    let exact = run(&cat, Some(&at), &["--exact"]).json();
    assert_eq!(cached(&exact), 0);
    let copy = crate::support::Copy::new().with("model.layers.1.feed_forward.w2.weight", 5, 0x3c00);
    assert_eq!(cached(&run(&cat, Some(&at), &["--model", copy.path()]).json()), 0);
    // The built-in model and its files are one.
    let files = assets();
    let files = run(&cat, Some(&at), &["--model", files.to_str().unwrap()]).json();
    assert_eq!((cached(&files), &files["token_ids"]), (cached(&second), &plain["token_ids"]));
    // Threads and passes decide no bit.
    let split = run(&cat, Some(&at), &["--threads", "1", "--chunk", "32"]).json();
    assert_eq!((cached(&split), &split["token_ids"]), (cached(&second), &plain["token_ids"]));
}

#[test]
fn damaged_files_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (cat, _) = texts();
    let first = run(&cat, Some(dir.path()), &[]).json();
    let good: Vec<(PathBuf, Vec<u8>)> =
        blocks(dir.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    assert!(good.len() >= 4);
    let refill = |damage: &dyn Fn(usize, &[u8]) -> Vec<u8>| {
        good.iter().enumerate().for_each(|(i, (path, bytes))| fs::write(path, damage(i, bytes)).unwrap());
    };
    let flip = |at: usize| {
        move |_: usize, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 0x10;
            bytes
        }
    };
    let cases: [Damage; 10] = [
        Box::new(flip(0)),
        Box::new(flip(9)),
        Box::new(flip(20)),
        Box::new(flip(70)),
        Box::new(flip(20_001)),
        Box::new(|_, _| Vec::new()),
        Box::new(|i, bytes| bytes[..bytes.len() / (i + 2)].to_vec()),
        Box::new(|_, bytes| [bytes, &[7; 100]].concat()),
        Box::new(|_, _| b"{\"not\": \"ours\"}".to_vec()),
        Box::new(|_, bytes| {
            let mut bytes = bytes.to_vec();
            bytes[48..64].fill(0xff);
            bytes
        }),
    ];
    for (i, case) in cases.iter().enumerate() {
        refill(case);
        let ran = run(&cat, Some(dir.path()), &[]);
        let warnings = ran.stderr.lines().filter(|l| l.contains("is not used")).count();
        assert_eq!(warnings, 1, "case {i}: {}", ran.stderr);
        let ran = ran.json();
        assert_eq!((cached(&ran), &ran["token_ids"]), (0, &first["token_ids"]), "case {i}");
    }
    // Each under another's name.
    for (i, (path, _)) in good.iter().enumerate() {
        fs::write(path, &good[(i + 1) % good.len()].1).unwrap();
    }
    assert_eq!(cached(&run(&cat, Some(dir.path()), &[]).json()), 0);
    refill(&|_, bytes| bytes.to_vec());
    assert!(cached(&run(&cat, Some(dir.path()), &[]).json()) > 4 * BLOCK);
}

#[test]
fn a_directory_stays_within_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let (cat, _) = texts();
    run(&cat, Some(dir.path()), &["--prefix-cache-size", "300K"]).json();
    let files = blocks(dir.path());
    let bytes: u64 = files.iter().map(|f| fs::metadata(f).unwrap().len()).sum();
    assert!(!files.is_empty() && bytes <= 300 << 10, "{bytes} in {}", files.len());
    let again = run(&cat, Some(dir.path()), &["--prefix-cache-size", "300K"]).json();
    assert_eq!(cached(&again), files.len() as u64 * BLOCK, "it is the beginning that stays");
}

/// The statistics' numbers of tokens computed and held.
fn turns(ran: &Ran) -> Vec<(u64, u64)> {
    let number = |text: &str| text.trim().split(' ').next().unwrap().parse::<u64>().unwrap();
    let lines = ran.stderr.lines().filter(|l| l.starts_with("prefill "));
    lines
        .map(|line| {
            let held = line.split_once(" held)").map(|(before, _)| before.rsplit('(').next().unwrap());
            (number(&line["prefill ".len()..]), held.map_or(0, number))
        })
        .collect()
}

#[test]
fn a_chat_is_taken_up_by_another_process_and_after_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let (at, saved) = (dir.path().join("prefixes"), dir.path().join("chat.json"));
    let (cat, _) = texts();
    let args = ["chat", "--greedy", "-n", "16"];
    let with_dir = [&args[..], &["--prefix-cache", at.to_str().unwrap()]].concat();
    let script = format!("{cat}\n/save {}\ntell me more.\n/reset\n{cat}\n", saved.display());
    let first = anemone_with(script.as_bytes(), &with_dir).ok();
    let all = turns(&first);
    assert_eq!(all.len(), 3, "{}", first.stderr);
    let whole = all[0].0;
    assert!(whole > 4 * BLOCK && all[0].1 == 0, "{all:?}");
    assert!(all[1].1 > whole, "the engine holds the first turn: {all:?}");
    assert_eq!(all[2], (whole - all[2].1, (whole - 1) / BLOCK * BLOCK), "after the reset: {all:?}");
    // Memory alone remembers too, unless it is given none.
    let memory = anemone_with(script.as_bytes(), &args).ok();
    assert_eq!(turns(&memory), all);
    let none = anemone_with(script.as_bytes(), &[&args[..], &["--prefix-cache-memory", "0"]].concat()).ok();
    assert_eq!(turns(&none)[2], (whole, 0));
    assert!(first.stdout == memory.stdout && first.stdout == none.stdout);
    // Another process takes the saved chat up: what is new and less than a block is computed.
    let script = format!("/load {}\ntell me more.\n", saved.display());
    let second = anemone_with(script.as_bytes(), &with_dir).ok();
    let [(computed, held)] = turns(&second)[..] else { panic!("{}", second.stderr) };
    assert_eq!(computed + held, all[1].0 + all[1].1);
    assert!(computed <= all[1].0 + BLOCK, "{computed} after {all:?}");
    assert_eq!(second.stdout.lines().next(), first.stdout.lines().nth(1));
}

#[test]
fn misuse_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    anemone(&["run", "--prefix-cache", file]).fails(1, &["--prefix-cache", file, "directory"]);
    anemone(&["run", "--prefix-cache-size", "1G"]).fails(2, &["--prefix-cache"]);
    let at = dir.path().to_str().unwrap();
    anemone(&["run", "--prefix-cache", at, "--prefix-cache-size", "much"])
        .fails(2, &["--prefix-cache-size", "much", "500M"]);
    anemone(&["chat", "--prefix-cache-memory", "-3"]).fails(2, &["-3"]);
}
