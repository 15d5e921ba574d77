use super::Finding;
use super::lexer::Lexed;

/// The crates that may hold `unsafe`.
const UNSAFE: [&str; 3] = ["crates/anemone-tensor/", "crates/anemone-kernels/", "crates/anemone-coreml/"];
/// The crates that may print and read the environment.
const FRONT: [&str; 2] = ["crates/anemone/", "xtask/"];
const PRINTS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];
const ENVIRONMENT: [&str; 4] = ["env::var", "env::var_os", "env::vars", "env::vars_os"];
const UNFINISHED: [&str; 2] = ["todo!", "unimplemented!"];
/// First parts of paths that exist on one machine only.
const MACHINE: [&str; 4] = ["work", "root", "home", "tmp"];
const SAFETY_REACH: usize = 6;

/// All rules on one Rust file.
pub(super) fn check(file: &str, text: &str, lexed: &Lexed, in_tests: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    let front = FRONT.iter().any(|dir| file.starts_with(dir));
    let quiet = !front && !file.ends_with("build.rs") && !file.contains("examples/");
    for (i, code) in lexed.code.iter().enumerate() {
        let test = in_tests || lexed.test[i];
        let mut find = |message: String| findings.push(Finding::new(file, i + 1, message));
        if !test {
            if quiet {
                for call in PRINTS.iter().filter(|call| has_word(code, call)) {
                    find(format!("`{call}` outside the binary; return the text or use tracing"));
                }
                if ENVIRONMENT.iter().any(|call| has_word(code, call)) {
                    find("the environment is read outside the binary; take an option instead".to_owned());
                }
            }
            for call in UNFINISHED.iter().filter(|call| has_word(code, call)) {
                find(format!("`{call}` in committed code; finish it or return an error"));
            }
            if lines.get(i).is_some_and(|line| has_word(line, concat!("FIX", "ME"))) {
                find(concat!("`FIX", "ME` in committed code; fix it or open an issue").to_owned());
            }
            if let Some(dir) = MACHINE.iter().find(|dir| lexed.strings[i].contains(&format!("/{dir}/"))) {
                find(format!(
                    "a path under `/{dir}/` in a string exists on one machine only; take it as an option"
                ));
            }
        }
        if has_word(code, "unsafe") {
            if !UNSAFE.iter().any(|dir| file.starts_with(dir)) {
                find(
                    "`unsafe` outside tensor, kernels and coreml; move it there behind a safe function"
                        .to_owned(),
                );
            } else if let Some(form) = opened(code, lexed.code.get(i + 1))
                && !(has_safety(&lines, i) || covered(form, &lines, &lexed.code, i))
            {
                find("`unsafe` without a `SAFETY` comment just above; say why it is sound".to_owned());
            }
        }
    }
    findings
}

/// What an `unsafe` opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Block,
    Function,
    /// An impl, trait or extern block.
    Item,
}

/// What the line's `unsafe` opens; a function pointer type opens nothing.
fn opened(code: &str, next: Option<&String>) -> Option<Form> {
    words(code, "unsafe").find_map(|i| {
        let rest = code[i + "unsafe".len()..].trim_start();
        let rest = if rest.is_empty() { next.map_or("", |line| line.trim_start()) } else { rest };
        let function = rest.starts_with("fn") || rest.starts_with("extern \"C\" fn");
        match rest {
            _ if rest.starts_with('{') => Some(Form::Block),
            _ if function => (!rest.contains("fn(")).then_some(Form::Function),
            _ if ["impl", "trait", "extern"].iter().any(|word| rest.starts_with(word)) => Some(Form::Item),
            _ => None,
        }
    })
}

/// Whether a wider statement answers for it: the file's, given as the reason of an allowed lint, or, for a method,
/// its trait's contract or the comment on its impl or trait.
fn covered(form: Form, lines: &[&str], code: &[String], line: usize) -> bool {
    let file = |text: &&str| text.starts_with("#![allow(clippy::undocumented_unsafe_blocks, reason = ");
    if form != Form::Item && lines.iter().any(file) {
        return true;
    }
    form == Form::Function
        && enclosing(code, line).is_some_and(|item| {
            let header = &code[item];
            let of_trait = has_word(header, "impl") && has_word(header, "for");
            of_trait || (has_word(header, "impl") || has_word(header, "trait")) && has_safety(lines, item)
        })
}

/// The line that opens the braces around a line.
fn enclosing(code: &[String], line: usize) -> Option<usize> {
    let mut depth = 0i64;
    (0..line).rev().find(|&i| {
        code[i].chars().rev().any(|c| {
            depth += i64::from(c == '}') - i64::from(c == '{');
            depth < 0
        })
    })
}

/// A comment that says why, within reach above, on the line itself, or in the doc block of the item.
fn has_safety(lines: &[&str], line: usize) -> bool {
    let says = |text: &str| text.contains("SAFETY") || text.contains("# Safety");
    if lines[line.saturating_sub(SAFETY_REACH)..=line].iter().any(|text| says(text)) {
        return true;
    }
    let attached = |text: &&&str| text.trim_start().starts_with("///") || text.trim_start().starts_with('#');
    lines[..line].iter().rev().take_while(attached).any(|text| says(text))
}

fn has_word(text: &str, word: &str) -> bool {
    words(text, word).next().is_some()
}

/// Places of a word that is not part of a longer one.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(i, _)| i).filter(move |&i| {
        let (before, after) = (text[..i].chars().next_back(), text[i + word.len()..].chars().next());
        !(before.is_some_and(is_word) || word.ends_with(is_word) && after.is_some_and(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(file: &str, text: &str) -> Vec<String> {
        check(file, text, &Lexed::new(text), false).into_iter().map(|f| f.to_string()).collect()
    }

    fn broken(file: &str, text: &str, fragment: &str) {
        let found = messages(file, text);
        assert!(found.len() == 1 && found[0].contains(fragment), "{text}: {found:?}");
    }

    const LIB: &str = "crates/anemone-cpu/src/lib.rs";
    const KERNEL: &str = "crates/anemone-kernels/src/lib.rs";

    #[test]
    fn libraries_do_not_print_or_read_the_environment() {
        broken(LIB, "fn f() {\n    println!(\"x\");\n}", "lib.rs:2: `println!` outside the binary");
        broken(LIB, "fn f() { dbg!(1); }", "`dbg!`");
        broken(LIB, "let x = std::env::var(\"A\");", "the environment is read");
        broken(LIB, "let x = env::var_os(\"A\");", "the environment is read");
        assert_eq!(messages("crates/anemone/src/main.rs", "println!(); env::var(\"A\");"), [""; 0]);
        assert_eq!(messages(LIB, "// println!\nlet s = \"dbg!\"; my_println!(); env!(\"X\");"), [""; 0]);
        assert_eq!(messages(LIB, "#[cfg(test)]\nmod tests {\n fn f() { println!(); }\n}"), [""; 0]);
    }

    #[test]
    fn unsafe_stays_in_its_crates_with_a_reason() {
        broken(LIB, "unsafe { f() }", "`unsafe` outside tensor");
        broken(LIB, "#[cfg(test)]\nmod tests {\n unsafe fn f() {}\n}", "`unsafe` outside tensor");
        assert_eq!(messages(LIB, "#![deny(unsafe_code)] // unsafe\n"), [""; 0]);
        broken(KERNEL, "fn f() {\n    unsafe { g() }\n}", "lib.rs:2: `unsafe` without");
        broken(KERNEL, "unsafe impl Send for X {}", "without a `SAFETY`");
        broken(KERNEL, "let x =\n    unsafe\n    {\n g() };", "lib.rs:2: `unsafe` without");
        assert_eq!(messages(KERNEL, "// SAFETY: checked above.\nunsafe { g() }"), [""; 0]);
        assert_eq!(
            messages(
                KERNEL,
                "/// # Safety\n/// a\n/// b\n/// c\n/// d\n/// e\n/// f\n/// g\n#[inline]\npub unsafe fn g() {}"
            ),
            [""; 0]
        );
        broken(KERNEL, "// SAFETY: too far\n\n\n\n\n\n\n\nunsafe { g() }", "without a `SAFETY`");
        assert_eq!(messages(KERNEL, "type F = unsafe fn(usize);"), [""; 0]);
    }

    #[test]
    fn a_wider_statement_covers_methods_and_files() {
        let method = "    fn g() {}\n\n\n\n\n\n\n\n    unsafe fn f() {}\n}";
        assert_eq!(messages(KERNEL, &format!("impl X for Y {{\n{method}")), [""; 0]);
        assert_eq!(messages(KERNEL, &format!("/// # Safety\n/// x\nunsafe trait X {{\n{method}")), [""; 0]);
        broken(KERNEL, &format!("impl Y {{\n{method}"), "lib.rs:10: `unsafe` without");
        broken(
            KERNEL,
            "impl X for Y {\n    fn f() {\n        unsafe { g() }\n    }\n}",
            "lib.rs:3: `unsafe` without",
        );
        let allow = "#![allow(clippy::undocumented_unsafe_blocks, reason = \"the contract of `X`\")]";
        assert_eq!(messages(KERNEL, &format!("{allow}\nunsafe fn f() {{ unsafe {{ g() }} }}")), [""; 0]);
        broken(KERNEL, &format!("{allow}\nunsafe impl Send for X {{}}"), "lib.rs:2: `unsafe` without");
    }

    #[test]
    fn nothing_unfinished_and_no_machine_paths() {
        broken(LIB, "todo!()", "`todo!` in committed code");
        broken(LIB, "unimplemented!()", "`unimplemented!`");
        broken(LIB, concat!("// FIX", "ME later"), concat!("`FIX", "ME`"));
        broken(LIB, "let p = \"/home/me/model\";", "under `/home/`");
        assert_eq!(messages(LIB, "// see /home/me\nlet p = \"homework/x\";"), [""; 0]);
    }
}
