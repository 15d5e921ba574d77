mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::cli::Shell;
use crate::{files, output};
use report::{Finding, Report};

/// What the model is asked to go on from.
const PROMPTS: [&str; 4] = [
    "once upon a time",
    "the little dog was sad because",
    "lily and tom went to the park",
    "one day a big bear",
];
/// Tokens generated for each.
const TOKENS: &str = "48";
/// Text whose perplexity is taken; written for this.
const TEXT: &str = "once upon a time there was a small cat who liked to sit in the sun. one day the cat saw a bird in the tree. \
     the bird was singing a happy song. the cat wanted to be the bird's friend, so it said hello. the bird was scared at first, \
     but then it smiled and flew down. they played all day and were very happy.";
/// Most that the perplexity may differ from the CPU engine's: fp16 on any sound engine stays below 0.2 %.
const MOST_DIFFERENCE: f64 = 0.01;
/// Fewest tokens in all that must be those of the emulator, as a share: rounding may part two texts where two tokens are as likely,
/// and what follows is then another text.
const LEAST_EQUAL: f64 = 0.5;

/// Try Core ML on this machine with the built-in models, and write a report
///
/// Converts the models, runs them by Core ML, by the emulator and on the CPU engine, compares tokens, perplexity and the answers of the
/// decision model, reads where operations are placed, and measures rates. Every step is a process of its own, so that one that crashes
/// is a finding and not the end. Exits 1 when a check fails.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  anemone selftest\n  anemone selftest --cpu-only --out ci-report\n  anemone selftest --simulate none"
)]
pub(crate) struct Args {
    /// Directory for report.json and report.html
    #[arg(long, short = 'o', value_name = "DIR", default_value = "anemone-selftest")]
    out: PathBuf,
    /// Use the processor only, as on machines without a Neural Engine; placements are not asked for
    #[arg(long)]
    cpu_only: bool,
    /// Try it anywhere, over a simulated Core ML; see `run --help`
    #[arg(long, value_name = "FAULTS", value_parser = faults)]
    simulate: Option<String>,
}

fn faults(text: &str) -> Result<String, String> {
    text.split(',').try_for_each(|name| crate::engine::fault(name).map(drop))?;
    Ok(text.to_owned())
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    ensure!(
        cfg!(target_vendor = "apple") || args.simulate.is_some(),
        "selftest tries Core ML, which is on Macs only; --simulate none runs it over a simulated one"
    );
    std::fs::create_dir_all(&args.out).with_context(|| {
        format!("--out {}: cannot make the directory; choose another place", args.out.display())
    })?;
    let work = tempfile::tempdir().context("cannot make a directory for the work")?;
    let steps = Steps { work: work.path(), args, quiet: shell.quiet };
    let report = steps.all();
    let json = report.json();
    let path = args.out.join("report.json");
    files::write_whole("--out", &path, |file| Ok(serde_json::to_writer_pretty(file, &json)?))?;
    let page = args.out.join("report.html");
    files::write_whole("--out", &page, |file| {
        use std::io::Write as _;
        Ok(file.write_all(report.html().as_bytes())?)
    })?;
    for finding in &report.findings {
        output::data(&format!("{}\n", finding.line()))?;
    }
    output::data(&format!("written    {} and {}\n", path.display(), page.display()))?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Steps<'a> {
    work: &'a Path,
    args: &'a Args,
    quiet: bool,
}

impl Steps<'_> {
    /// [`Steps::ask`] of a command that prints what it found also when it did not pass.
    fn ask_all(&self, words: &[&str]) -> Result<Value> {
        self.run(words, true)
    }

    /// Runs this program and reads what it prints as JSON.
    fn ask(&self, words: &[&str]) -> Result<Value> {
        self.run(words, false)
    }

    fn run(&self, words: &[&str], may_fail: bool) -> Result<Value> {
        let program = std::env::current_exe().context("cannot find this program again")?;
        let start = Instant::now();
        let done = Command::new(program)
            .args(words)
            .env("XDG_CACHE_HOME", self.work)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run `{}`", words[0]))?;
        let told = may_fail && done.stdout.starts_with(b"{");
        if !done.status.success() && !told {
            let said = String::from_utf8_lossy(&done.stderr);
            let last =
                said.lines().last().unwrap_or("it said nothing").trim_start_matches("error: ").to_owned();
            return Err(anyhow!("`{}` ended with {}: {last}", words[0], done.status));
        }
        if !self.quiet {
            output::note(&format!(
                "{} took {:.1} s",
                words[..2.min(words.len())].join(" "),
                start.elapsed().as_secs_f64()
            ));
        }
        Ok(serde_json::from_slice(&done.stdout).unwrap_or(Value::Null))
    }

    /// Flags of an engine; Core ML as it was asked for.
    fn engine<'s>(&'s self, name: &'s str, compiled: &'s str) -> Vec<&'s str> {
        let mut flags = vec!["--engine", name];
        if name == "coreml" {
            flags.extend(["--compiled-models", compiled]);
            if self.args.cpu_only {
                flags.extend(["--compute-units", "cpu_only"]);
            }
            if let Some(faults) = &self.args.simulate {
                flags.extend(["--simulate", faults]);
            }
        }
        flags
    }

    fn all(&self) -> Report {
        let mut report = Report::new(self.args.simulate.is_some(), self.args.cpu_only);
        let doctor = self.ask(&["doctor", "--json"]);
        report.keep("doctor", doctor);
        let bundle = self.work.join("stories.bundle").display().to_string();
        let converted =
            self.ask(&["convert", "-q", "--json", "--out", &bundle, "--ctx", "256", "--prefill", "64"]);
        if report.keep("convert", converted).is_none() {
            return report;
        }
        self.decisions(&mut report);
        self.tokens(&mut report, &bundle);
        self.perplexity(&mut report, &bundle);
        let compiled = self.work.join("compiled").display().to_string();
        let bench =
            ["bench", "-q", "--json", "--model", &bundle, "--pp", "64", "--tg", "32", "--repeat", "5"];
        let rates = self.ask(&[&bench[..], &self.engine("coreml", &compiled)].concat());
        report.keep("bench", rates);
        report
    }

    /// The decision model's answers by Core ML against the checkpoint in f32.
    fn decisions(&self, report: &mut Report) {
        let (bundle, compiled) = (self.work.join("laya.bundle"), self.work.join("compiled"));
        let (bundle, compiled) = (bundle.display().to_string(), compiled.display().to_string());
        let convert = [
            "convert",
            "-q",
            "--json",
            "--decision",
            "--out",
            &bundle,
            "--length",
            "64",
            "--length",
            "96",
            "--pack",
        ];
        let converted = self.ask(&convert);
        if report.keep("convert the decision model", converted).is_none() {
            return;
        }
        let words = ["validate", "-q", "--json", "--bundle", &bundle];
        let told = self.ask_all(&[&words[..], &self.engine("coreml", &compiled)].concat());
        let Some(told) = report.keep("validate by coreml", told) else { return };
        report.check(Finding {
            name: "decisions".to_owned(),
            passed: told["passed"] == true,
            detail: format!(
                "{} of {} questions were answered, with probabilities off by {:.5} at most ({} is allowed)",
                told["validated"],
                told["rows"],
                told["max_probability_error"].as_f64().unwrap_or(f64::NAN),
                told["tolerance"]
            ),
        });
    }

    /// What each engine says, and where Core ML says it runs.
    fn tokens(&self, report: &mut Report, bundle: &str) {
        let compiled = self.work.join("compiled").display().to_string();
        let (mut equal, mut all) = (0, 0);
        for prompt in PROMPTS {
            let words = ["run", "-q", "--json", "--greedy", "-n", TOKENS, "-p", prompt, "--bundle", bundle];
            let mut ids = Vec::new();
            for engine in ["emulator", "coreml"] {
                let told = self.ask(&[&words[..], &self.engine(engine, &compiled)].concat());
                let Some(told) = report.keep(&format!("run by {engine}: {prompt}"), told) else { return };
                ids.push(told["token_ids"].as_array().cloned().unwrap_or_default());
                if engine == "coreml" {
                    report.placed(&told["core_ml"]);
                }
            }
            equal += ids[0].iter().zip(&ids[1]).take_while(|(a, b)| a == b).count();
            all += ids[0].len();
        }
        let share = equal as f64 / all.max(1) as f64;
        report.check(Finding {
            name: "tokens".to_owned(),
            passed: share >= LEAST_EQUAL,
            detail: format!("{equal} of {all} are the emulator's before the first that differs; at least {LEAST_EQUAL:.0$} of them must be", 1),
        });
    }

    fn perplexity(&self, report: &mut Report, bundle: &str) {
        let compiled = self.work.join("compiled").display().to_string();
        let text = self.work.join("text.txt");
        if let Err(error) = std::fs::write(&text, TEXT) {
            report.keep("text", Err(error.into()));
            return;
        }
        let text = text.display().to_string();
        let mut values = Vec::new();
        for engine in ["cpu", "coreml"] {
            let words = ["perplexity", "-q", "--json", "--model", bundle, "--file", &text, "--window", "64"];
            let told = self.ask(&[&words[..], &self.engine(engine, &compiled)].concat());
            let Some(told) = report.keep(&format!("perplexity by {engine}"), told) else { return };
            values.push(told["perplexity"].as_f64().unwrap_or(f64::NAN));
        }
        let difference = (values[1] / values[0] - 1.0).abs();
        report.check(Finding {
            name: "perplexity".to_owned(),
            passed: difference <= MOST_DIFFERENCE,
            detail: format!(
                "{:.4} by Core ML and {:.4} on the CPU engine, {:.2} % apart (at most {:.0} %)",
                values[1],
                values[0],
                difference * 100.0,
                MOST_DIFFERENCE * 100.0
            ),
        });
    }
}

impl Finding {
    fn line(&self) -> String {
        format!("{}  {:<10} {}", if self.passed { "ok  " } else { "FAIL" }, self.name, self.detail)
    }
}

/// What a step told, under its name.
fn told(name: &str, value: &Value) -> Value {
    json!({"step": name, "told": value})
}
