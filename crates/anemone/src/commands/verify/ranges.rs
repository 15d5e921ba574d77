//! How far sums and products are from the limits of a profile.

use std::fmt::Write as _;

use anemone_emulator::{Profile, Range};
use serde_json::{Value, json};

/// Most operations the table lists.
const SHOWN: usize = 12;

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    package: String,
    op: String,
    /// Terms of a sum.
    terms: usize,
    /// Largest sum.
    peak: f32,
    /// What no partial sum can exceed.
    reach: f32,
    /// Doublings from `reach` to overflow.
    headroom_bits: Option<f64>,
    /// Root mean square of the products.
    rms: f64,
    /// Doublings from there down to where products are dropped.
    margin_bits: Option<f64>,
    /// Share of the products that are dropped.
    dropped: f64,
    /// Share of the sum of squares they take along.
    lost: f64,
}

/// Operations in order of package and name.
pub(super) fn rows(profile: &Profile, seen: &[Range]) -> Vec<Row> {
    let row = |r: &Range| {
        let limits = profile.limits(r.terms);
        let (dropped, lost) = r.dropped_share();
        Row {
            package: r.package.clone(),
            op: r.op.clone(),
            terms: r.terms,
            peak: r.peak,
            reach: r.reach,
            headroom_bits: limits.overflow.and_then(|l| r.headroom(l)),
            rms: r.rms(),
            margin_bits: limits.dropped.and_then(|d| r.margin(d)),
            dropped,
            lost,
        }
    };
    seen.iter().map(row).collect()
}

/// All of them as JSON.
pub(super) fn json(rows: &[Row]) -> Value {
    let row = |r: &Row| {
        json!({
            "package": r.package,
            "op": r.op,
            "terms": r.terms,
            "peak": r.peak,
            "reach": r.reach,
            "headroom_bits": r.headroom_bits,
            "rms": r.rms,
            "margin_bits": r.margin_bits,
            "dropped": r.dropped,
            "lost": r.lost,
        })
    };
    rows.iter().map(row).collect()
}

/// The operations nearest to a limit, from either side.
pub(super) fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let limited = |r: &&Row| r.headroom_bits.is_some() || r.margin_bits.is_some();
    let mut rows: Vec<&Row> = rows.iter().filter(limited).collect();
    if rows.is_empty() {
        return out;
    }
    let near = |r: &Row| {
        let far = f64::INFINITY;
        r.headroom_bits.unwrap_or(far).min(r.margin_bits.unwrap_or(far))
    };
    rows.sort_by(|a, b| near(a).total_cmp(&near(b)));
    let _ = writeln!(
        out,
        "\n{:<52} {:>6} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "sums of products, nearest to a limit", "terms", "peak", "headroom", "margin", "dropped", "lost"
    );
    let bits = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.1} bits"));
    for r in rows.iter().take(SHOWN) {
        let name = format!("{}: {}", r.package, r.op);
        let _ = writeln!(
            out,
            "{name:<52} {:>6} {:>10.3e} {:>10} {:>10} {:>8.3}% {:>8.4}%",
            r.terms,
            r.peak,
            bits(r.headroom_bits),
            bits(r.margin_bits),
            100.0 * r.dropped,
            100.0 * r.lost
        );
    }
    if rows.len() > SHOWN {
        let _ = writeln!(out, "and {} more, which --json lists", rows.len() - SHOWN);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(op: &str, reach: f32, rms: f64) -> Range {
        Range {
            package: "chunk_0".into(),
            op: op.into(),
            terms: 64,
            sums: 1,
            peak: reach / 2.0,
            reach,
            products: 4,
            dropped: 1,
            energy: 4.0 * rms * rms,
            lost: rms * rms,
            ..Range::default()
        }
    }

    #[test]
    fn distances_are_those_to_the_profiles_limits_and_the_nearest_come_first() {
        let m4: Profile = "m4".parse().unwrap();
        let seen =
            [range("far", 1.0, 0.01), range("large", 16384.0, 1.0), range("small", 1.0, f64::powi(2.0, -17))];
        let found = rows(&m4, &seen);
        let bits: Vec<_> = found.iter().map(|r| (r.headroom_bits.unwrap(), r.margin_bits.unwrap())).collect();
        assert_eq!((bits[0].0, bits[1].0, bits[1].1, bits[2].1), (15.0, 1.0, 15.0, -2.0));
        assert_eq!((found[0].dropped, found[0].lost), (0.25, 0.25));
        let text = table(&found);
        let at = |op: &str| text.find(&format!("chunk_0: {op}")).unwrap();
        assert!(at("small") < at("large") && at("large") < at("far"), "{text}");
        assert!(text.contains("1.0 bits") && text.contains("-2.0 bits") && text.contains("25.000%"));
        let many: Vec<_> = (0..20).map(|i| range(&format!("op_{i}"), 1.0, 1.0)).collect();
        assert!(table(&rows(&m4, &many)).contains("and 8 more"));
        // Nothing is dropped where nothing drops, and f32 has no limits.
        let fp16 = rows(&Profile::fp16(), &seen);
        assert!(fp16.iter().all(|r| r.margin_bits.is_none() && r.headroom_bits.is_some()));
        assert_eq!(table(&rows(&Profile::f32(), &seen)), "");
    }
}
