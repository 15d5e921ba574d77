use super::*;

/// A file piece by piece.
struct Build(Vec<u8>);

impl Build {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        Self(bytes)
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, n: u32) -> Self {
        self.raw(&n.to_le_bytes())
    }

    fn u64(self, n: u64) -> Self {
        self.raw(&n.to_le_bytes())
    }

    /// An entry of the table of tensors.
    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let start = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(start, |b, dim| b.u64(*dim)).u32(kind).u64(offset)
    }

    fn padded(mut self, data: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        self
    }

    fn parse(self) -> Result<GgufFile, Error> {
        GgufFile::parse("x.gguf", &self.0.into())
    }

    fn error(self) -> String {
        self.parse().map(|_| ()).unwrap_err().to_string()
    }
}

#[test]
fn values_of_every_type_are_read() {
    let keys = Build::new(3, 0, 6)
        .text("a")
        .u32(0)
        .raw(&[7])
        .text("b")
        .u32(5)
        .raw(&(-3i32).to_le_bytes())
        .text("c")
        .u32(6)
        .raw(&1.5f32.to_le_bytes())
        .text("d")
        .u32(7)
        .raw(&[1])
        .text("e")
        .u32(9)
        .u32(8)
        .u64(2)
        .text("x")
        .text("yz")
        .text("f")
        .u32(9)
        .u32(4)
        .u64(3)
        .u32(1)
        .u32(0)
        .u32(9);
    let metadata = keys.parse().unwrap().metadata();
    assert_eq!(metadata.get("a"), Some(MetadataValue::Int(7)));
    assert_eq!(metadata.get("b"), Some(MetadataValue::Int(-3)));
    assert_eq!(metadata.number("c").unwrap(), Some(1.5));
    assert_eq!(metadata.flag("d").unwrap(), Some(true));
    assert_eq!(metadata.texts("e").unwrap().unwrap(), ["x", "yz"]);
    assert_eq!(metadata.ints("f").unwrap().unwrap(), [1, 0, 9]);
    assert_eq!(metadata.get("f"), Some(MetadataValue::Array(3)));
    assert_eq!(metadata.text("a").unwrap_err().to_string(), "x.gguf: key `a` is 7, expected a string");
    assert!(metadata.count("b").unwrap_err().to_string().contains("is -3, expected a whole number"));
    assert!(metadata.texts("f").unwrap_err().to_string().contains("is no array of strings"));
}

#[test]
fn tensors_are_found_behind_the_table() {
    let file = Build::new(2, 2, 0)
        .tensor("a", &[4, 2], 0, 0)
        .tensor("b", &[32, 3], 2, 32)
        .padded(32 + 54)
        .parse()
        .unwrap();
    let b = file.tensor("b").unwrap();
    assert_eq!((b.kind.name(), &b.shape[..], b.bytes.len()), ("Q4_0".to_owned(), &[3, 32][..], 54));
    assert_eq!(file.tensor("a").unwrap().bytes.len(), 32);
}

#[test]
fn broken_files_are_refused_by_name() {
    let one = |dims: &[u64], kind, offset, data| {
        Build::new(3, 1, 0).tensor("w", dims, kind, offset).padded(data).error()
    };
    let cases: Vec<(String, &str)> = vec![
        (Build(b"GGU".to_vec()).error(), "does not begin with `GGUF` at byte 0"),
        (Build(b"GGUF\x03".to_vec()).error(), "the version of 4 bytes where 1 are left, at byte 4"),
        (Build::new(1, 0, 0).error(), "GGUF version 1"),
        (Build::new(9, 0, 0).error(), "GGUF version 9"),
        (Build::new(3u32.swap_bytes(), 0, 0).error(), "big-endian"),
        (Build::new(3, u64::MAX, 0).error(), "18446744073709551615 tensors, more than 100000, at byte 8"),
        (Build::new(3, 0, 200_000).error(), "200000 keys"),
        (Build::new(3, 0, 1).u64(u64::MAX).error(), "key of 18446744073709551615 bytes where 0 are left"),
        (Build::new(3, 0, 1).u64(2).raw(&[0xff, 0xff]).error(), "key that is not UTF-8"),
        (Build::new(3, 0, 1).text("k").u32(13).error(), "key `k` has a value of type 13"),
        (
            Build::new(3, 0, 1).text("k").u32(4).raw(&[1]).error(),
            "the value of `k` of 4 bytes where 1 are left",
        ),
        (Build::new(3, 0, 1).text("k").u32(8).u64(9).raw(b"abc").error(), "the value of `k` of 9 bytes"),
        (Build::new(3, 0, 1).text("k").u32(9).u32(4).u64(1 << 62).error(), "the values of `k`"),
        (Build::new(3, 0, 1).text("k").u32(9).u32(8).u64(u64::MAX).error(), "the values of `k` of 8 bytes"),
        (
            (0..5).fold(Build::new(3, 0, 1).text("k").u32(9), |b, _| b.u32(9).u64(1)).error(),
            "arrays 4 deep in `k`",
        ),
        (
            Build::new(3, 0, 2).text("k").u32(0).raw(&[1]).text("k").u32(0).raw(&[1]).error(),
            "key `k` is there twice",
        ),
        (
            Build::new(3, 0, 1).text("general.alignment").u32(4).u32(33).error(),
            "key `general.alignment` is 33",
        ),
        (Build::new(3, 1, 0).text("w").u32(0).error(), "tensor `w` has 0 dimensions"),
        (Build::new(3, 1, 0).text("w").u32(5).error(), "tensor `w` has 5 dimensions"),
        (one(&[0], 0, 0, 0), "impossible dimensions [0]"),
        (one(&[u64::MAX, u64::MAX], 0, 0, 0), "impossible dimensions"),
        (one(&[33, 2], 2, 0, 64), "tensor `w` of Q4_0 has impossible dimensions [33, 2]"),
        (one(&[8], 0, 7, 64), "offset 7, no multiple of 32"),
        (one(&[8], 0, 64, 64), "tensor `w` of 32 bytes at offset 64 reaches beyond"),
        (one(&[8], 0, u64::MAX - 31, 64), "reaches beyond"),
        (
            Build::new(3, 2, 0).tensor("w", &[8], 0, 0).tensor("w", &[8], 0, 32).padded(64).error(),
            "tensor `w` is there twice",
        ),
        (
            Build::new(3, 2, 0).tensor("w", &[16], 0, 0).tensor("x", &[8], 0, 32).padded(64).error(),
            "tensors `w` and `x` overlap",
        ),
    ];
    assert!(cases.len() >= 25);
    for (error, expected) in cases {
        assert!(error.starts_with("x.gguf: ") && error.contains(expected), "{error}\nexpected: {expected}");
    }
}

#[test]
fn what_is_no_supported_model_is_refused_by_key() {
    let arch = |name: &str| Build::new(3, 0, 1).text("general.architecture").u32(8).text(name);
    let refused = |b: Build| read(b.parse().unwrap()).map(|_| ()).unwrap_err().to_string();
    assert!(refused(arch("llama")).contains("key `general.architecture` is `llama`; supported are lfm2"));
    assert!(refused(Build::new(3, 0, 0)).contains("key `general.architecture` is missing"));
    assert!(refused(arch("lfm2")).contains("key `lfm2.block_count` is missing"));
    let part = Build::new(3, 0, 1).text("split.count").u32(2).raw(&3u16.to_le_bytes());
    assert!(refused(part).contains("key `split.count` is 3: the file is a part"));
}

#[test]
fn what_is_written_is_read_again() {
    let metadata = [
        ("a".to_owned(), GgufValue::U32(7)),
        ("b".to_owned(), GgufValue::F32(0.5)),
        ("c".to_owned(), GgufValue::Flag(true)),
        ("d".to_owned(), GgufValue::Text("word".to_owned())),
        ("e".to_owned(), GgufValue::Texts(vec!["x".to_owned(), String::new()])),
        ("f".to_owned(), GgufValue::Ints(vec![-1, 2])),
        ("g".to_owned(), GgufValue::Flags(vec![true, false])),
    ];
    let kinds = [
        TensorType::Blocks(anemone_tensor::BlockFormat::Q4_0),
        TensorType::Plain(anemone_tensor::DType::F16),
    ];
    let plan = |(i, kind): (usize, TensorType)| GgufPlan { name: format!("t{i}"), kind, shape: vec![3, 32] };
    let plans: Vec<GgufPlan> = kinds.into_iter().enumerate().map(plan).collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &plans).unwrap();
    writer.tensor(&[1; 54]).unwrap();
    writer.tensor(&[2; 192]).unwrap();
    let file = GgufFile::parse("x.gguf", &writer.finish().unwrap().into()).unwrap();
    let read = file.metadata();
    assert_eq!((read.count("a").unwrap(), read.number("b").unwrap()), (Some(7), Some(0.5)));
    assert_eq!((read.flag("c").unwrap(), read.text("d").unwrap()), (Some(true), Some("word")));
    assert_eq!(read.texts("e").unwrap().unwrap(), ["x", ""]);
    assert_eq!(read.ints("f").unwrap().unwrap(), [-1, 2]);
    assert_eq!(read.ints("g").unwrap().unwrap(), [1, 0]);
    for (i, (len, fill)) in [(54, 1u8), (192, 2)].into_iter().enumerate() {
        let tensor = file.tensor(&format!("t{i}")).unwrap();
        assert_eq!((tensor.kind, &tensor.shape[..]), (kinds[i], &[3, 32][..]));
        assert_eq!(tensor.bytes[..], vec![fill; len]);
    }
    let bad = GgufPlan { name: "t".to_owned(), kind: kinds[0], shape: vec![3, 33] };
    assert!(GgufWriter::new(Vec::new(), &[], &[bad]).unwrap_err().to_string().contains("no length"));
}
