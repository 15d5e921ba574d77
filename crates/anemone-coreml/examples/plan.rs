//! Compiles a package, loads a function by Core ML and shows where its operations run: `plan PACKAGE FUNCTION`. On a Mac only.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example for people")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(package), Some(function)) = (words.next(), words.next()) else {
        eprintln!("usage: plan PACKAGE FUNCTION");
        return ExitCode::from(2);
    };
    match show(&package, &function) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_vendor = "apple")]
fn show(package: &str, function: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use anemone_coreml::{CompiledModels, CoreMl, Options, System};
    use anemone_mil::Executor as _;

    let options = Options::new(CompiledModels::new(std::env::temp_dir().join("anemone-plan")));
    let mut executor = CoreMl::new(options, System::new)?;
    let loadings = executor.loadings();
    executor.load(std::path::Path::new(package), function)?;
    for loading in loadings.get() {
        for op in loading.plan.iter().flat_map(|plan| &plan.ops) {
            println!("{} {} {:?} {:?}", op.operator, op.name, op.device, op.cost);
        }
    }
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
fn show(_: &str, _: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Err("Core ML is on Macs only".into())
}
