//! GGUF files against what the `gguf` package makes of the same bytes (`tests/gguf/make.py` recorded it).

use anemone_tensor::{BlockFormat, Blocks};
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(pair).collect()
}

#[test]
fn blocks_of_every_type_are_read_as_the_reference_reads_them() {
    let recorded: Value = serde_json::from_str(include_str!("../gguf/blocks.json")).unwrap();
    for format in BlockFormat::ALL {
        let entry = &recorded[format.name()];
        let expected = bytes(&entry["elements"]);
        let cols = entry["cols"].as_u64().unwrap() as usize;
        let stored = bytes(&entry["bytes"]);
        let rows = expected.len() / 4 / cols;
        let elements = Blocks::new(format, (rows, cols), stored.into()).unwrap().expand();
        let found: Vec<u8> = elements.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(rows == 2 && found == expected, "{format}");
    }
}

#[test]
fn rows_are_coded_as_the_reference_codes_them() {
    let recorded: Value = serde_json::from_str(include_str!("../gguf/blocks.json")).unwrap();
    let mut checked = 0;
    for format in BlockFormat::ALL.into_iter().filter(|f| f.is_encoded()) {
        let entry = &recorded[format.name()];
        let values: Vec<f32> =
            bytes(&entry["values"]).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut coded = Vec::new();
        values.chunks_exact(96).for_each(|row| format.encode_row(row, &mut coded));
        assert_eq!(coded, bytes(&entry["coded"]), "{format}");
        checked += 1;
    }
    assert_eq!(checked, 5);
}
