//! Writing a GGUF file: metadata and the table first, then tensor after tensor as they come.

use std::io::{self, Write};

use super::file::{Size, TensorType};

/// Data of every tensor starts at a multiple of this.
const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// A count.
    U32(u32),
    /// A number.
    F32(f32),
    /// true or false.
    Flag(bool),
    /// Text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Whole numbers.
    Ints(Vec<i32>),
    /// Flags.
    Flags(Vec<bool>),
}

/// A tensor to come: its name, how its elements are stored, and its dimensions, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufPlan {
    /// Name.
    pub name: String,
    /// How elements are stored.
    pub kind: TensorType,
    /// Dimensions, outermost first; the last is of whole blocks.
    pub shape: Vec<usize>,
}

impl GgufPlan {
    /// Bytes of the tensor; `None` when its rows are no whole blocks or the type is not carried.
    pub fn len(&self) -> Option<usize> {
        let (cols, rows) = self.shape.split_last()?;
        match self.kind.size(*cols, rows.iter().product()) {
            Size::Bytes(len) => Some(len),
            Size::Unknown | Size::Impossible => None,
        }
    }

    /// Whether the tensor has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

/// A file that is being written: tensors follow in the order of their plans.
#[derive(Debug)]
pub struct GgufWriter<W> {
    out: W,
    /// Bytes of the tensors to come, the next one last.
    left: Vec<usize>,
}

impl<W: Write> GgufWriter<W> {
    /// Writes everything before the tensors.
    ///
    /// A plan without a length is an error.
    pub fn new(mut out: W, metadata: &[(String, GgufValue)], plans: &[GgufPlan]) -> io::Result<Self> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend((plans.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            text(&mut head, key);
            put(&mut head, value);
        }
        let (mut offset, mut left) = (0u64, Vec::new());
        for plan in plans {
            let Some(len) = plan.len() else {
                let problem = format!("tensor {} of {} has no length", plan.name, plan.kind.name());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            };
            text(&mut head, &plan.name);
            head.extend((plan.shape.len() as u32).to_le_bytes());
            plan.shape.iter().rev().for_each(|dim| head.extend((*dim as u64).to_le_bytes()));
            head.extend(plan.kind.id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset = (offset + len as u64).next_multiple_of(ALIGNMENT);
            left.push(len);
        }
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        out.write_all(&head)?;
        left.reverse();
        Ok(Self { out, left })
    }

    /// Writes the next tensor.
    ///
    /// Panics when there is none, or it has another length.
    pub fn tensor(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = self.left.pop();
        assert_eq!(len, Some(bytes.len()), "the tensor planned");
        self.out.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(ALIGNMENT as usize) - bytes.len();
        self.out.write_all(&[0; ALIGNMENT as usize][..padding])
    }

    /// Gives the file back.
    ///
    /// Panics when tensors are missing.
    pub fn finish(mut self) -> io::Result<W> {
        assert!(self.left.is_empty(), "every tensor planned");
        self.out.flush()?;
        Ok(self.out)
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put(out: &mut Vec<u8>, value: &GgufValue) {
    let mut array = |kind: u32, count: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        GgufValue::Texts(texts) => {
            array(8, texts.len());
            for t in texts {
                text(out, t);
            }
        }
        GgufValue::Ints(ints) => {
            array(5, ints.len());
            out.extend(ints.iter().flat_map(|n| n.to_le_bytes()));
        }
        GgufValue::Flags(flags) => {
            array(7, flags.len());
            out.extend(flags.iter().map(|f| u8::from(*f)));
        }
        GgufValue::U32(n) => {
            out.extend(4u32.to_le_bytes());
            out.extend(n.to_le_bytes());
        }
        GgufValue::F32(x) => {
            out.extend(6u32.to_le_bytes());
            out.extend(x.to_le_bytes());
        }
        GgufValue::Flag(flag) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*flag));
        }
        GgufValue::Text(value) => {
            out.extend(8u32.to_le_bytes());
            text(out, value);
        }
    }
}
