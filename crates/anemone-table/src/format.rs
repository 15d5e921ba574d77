//! Formats of tables.

use std::path::Path;

/// How a table lies in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Parquet, compressed by snappy, zstd or not at all.
    Parquet,
    /// Values between commas, the first line the names.
    Csv,
    /// Values between tabs, the first line the names.
    Tsv,
    /// A JSON object a line.
    Jsonl,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Parquet, Self::Csv, Self::Tsv, Self::Jsonl];

    /// Its name, which is the usual extension.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Jsonl => "jsonl",
        }
    }

    /// Its name in a sentence.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Jsonl => "JSONL",
        }
    }

    /// The format of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The format a file's extension says, in any letter case; `.pq` and `.ndjson` are known, too.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "pq" => Some(Self::Parquet),
            "ndjson" => Some(Self::Jsonl),
            "tab" => Some(Self::Tsv),
            extension => Self::named(extension),
        }
    }

    /// What stands between values.
    pub(crate) fn delimiter(self) -> u8 {
        if self == Self::Tsv { b'\t' } else { b',' }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_formats() {
        let of = |name: &str| Format::of_path(Path::new(name));
        assert_eq!(of("a.PARQUET"), Some(Format::Parquet));
        assert_eq!(of("a.b/c.ndjson"), Some(Format::Jsonl));
        assert_eq!(of("a.tsv"), Some(Format::Tsv));
        assert_eq!((of("a.json"), of("csv"), of("a.csv.gz")), (None, None, None));
    }
}
