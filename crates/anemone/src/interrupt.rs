use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static RUNNING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit code of a command the user broke off.
pub(crate) const EXIT_CODE: u8 = 130;

/// Makes Ctrl-C end the generation that runs, and the process when none runs or it is pressed again.
pub(crate) fn install() -> Result<()> {
    let handler = || {
        if !RUNNING.load(Ordering::SeqCst) || ASKED.swap(true, Ordering::SeqCst) {
            #[allow(clippy::exit, reason = "the user asked for the end a second time")]
            std::process::exit(i32::from(EXIT_CODE));
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")
}

/// While it lives, the first Ctrl-C only sets a flag.
#[derive(Debug)]
pub(crate) struct Guard(());

impl Guard {
    pub(crate) fn new() -> Self {
        ASKED.store(false, Ordering::SeqCst);
        RUNNING.store(true, Ordering::SeqCst);
        Self(())
    }
}

/// Whether Ctrl-C was pressed since the latest [`Guard`] was made.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

impl Drop for Guard {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::SeqCst);
    }
}
