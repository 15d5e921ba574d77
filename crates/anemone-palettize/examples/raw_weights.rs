//! Palettizes raw fp16 weights in one thread and says what it cost: `raw_weights FILE ROWS COLUMNS BITS GROUP METHOD [OUT]`.
//!
//! FILE holds little-endian fp16, row-major; GROUP 0 is one table for the whole; METHOD is exact, fast or uniform. OUT gets the
//! decoded weights. CPU time is what Linux counts for the thread, the mean of as many runs as take half a second.

#![allow(clippy::print_stdout, reason = "the bench reads it")]

use anemone_kernels::Pool;
use anemone_palettize::{Importance, Matrix, Method, Scheme, palettize};
use half::f16;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, rows, columns, bits, group, method, out @ ..] = &args[..] else {
        return Err("usage: raw_weights FILE ROWS COLUMNS BITS GROUP METHOD [OUT]".into());
    };
    let bytes = std::fs::read(file)?;
    let values: Vec<f16> = bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
    let method = match method.as_str() {
        "exact" => Method::Exact,
        "fast" => Method::Fast,
        "uniform" => Method::Uniform,
        other => return Err(format!("METHOD is {other}; use exact, fast or uniform").into()),
    };
    let scheme = Scheme::new(bits.parse()?, Some(group.parse()?).filter(|g| *g > 0), method);
    let matrix = Matrix::new(&values, rows.parse()?, columns.parse()?)?;
    let pool = Pool::new(1);
    // The first run only warms up.
    let mut found = palettize(matrix, &scheme, Importance::Equal, &pool, &|_| ())?;
    let (start, mut runs, mut seconds) = (cpu()?, 0, 0.0);
    while seconds < 0.5 {
        found = palettize(matrix, &scheme, Importance::Equal, &pool, &|_| ())?;
        runs += 1;
        seconds = cpu()? - start;
    }
    let seconds = seconds / f64::from(runs);
    println!(
        "{{\"cpu_seconds\": {seconds:e}, \"unrounded\": {:e}, \"squared\": {:e}, \"rel_rmse\": {:e}}}",
        found.unrounded,
        found.distortion.squared,
        found.distortion.rel_rmse()
    );
    if let Some(out) = out.first() {
        std::fs::write(out, found.decode().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    Ok(())
}

/// Seconds this thread has run.
fn cpu() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: u64 = text.split(' ').next().ok_or("no schedstat")?.parse()?;
    Ok(nanoseconds as f64 / 1e9)
}
