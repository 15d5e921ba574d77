/// How numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// f32 activations, products, sums and cache.
    Exact,
    /// bf16 products with f32 sums where native, f32 elsewhere; f16 cache.
    #[default]
    Fast,
}

/// Where weights are read from while computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// From the mapped files at first; a run that goes on decoding moves a large model to a private copy as in
    /// [`Layout::Packed`], bit by bit, where the system has large pages and room. The files' pages are given back.
    #[default]
    Auto,
    /// Straight from the checkpoint's mapped files; costs no memory of our own.
    Mapped,
    /// A private copy in 2 MiB pages, in the order a pass reads them, made with the first engine. Where products are of bf16,
    /// it takes 12 bits a weight, without loss beyond the products' own rounding.
    Packed,
}

/// Choices made when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Threads, the caller's included; as many as the system runs at once when 0.
    pub threads: usize,
    /// How numbers are computed.
    pub arithmetic: Arithmetic,
    /// Where weights are read from.
    pub layout: Layout,
    /// Most tokens the engine will hold; the model's own limit when absent.
    pub context_len: Option<usize>,
    /// Tokens of a prompt computed in one pass.
    pub chunk: usize,
    /// Tokens the engine can always step back.
    pub rewind: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 0,
            arithmetic: Arithmetic::default(),
            layout: Layout::default(),
            context_len: None,
            chunk: 512,
            rewind: 64,
        }
    }
}
