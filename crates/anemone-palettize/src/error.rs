/// Why weights cannot be compressed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The table size is none a package can hold.
    #[error("{bits} bits are not supported; use 1, 2, 3, 4, 6 or 8")]
    Bits {
        /// Asked for.
        bits: u8,
    },
    /// The integer width is none a package can hold.
    #[error("int{bits} is not supported; use int4 or int8")]
    Integer {
        /// Asked for.
        bits: u8,
    },
    /// The vector length is none the palettes here have.
    #[error("vectors of {vector} are not supported; use 1, 2 or 4")]
    Vector {
        /// Asked for.
        vector: usize,
    },
    /// Evenly spaced entries are numbers, not vectors.
    #[error("uniform tables hold single numbers; use k-means for vectors of {vector}")]
    UniformVector {
        /// Asked for.
        vector: usize,
    },
    /// No group size near the one asked for divides the rows.
    #[error(
        "no group of {} to {} rows divides its {rows} rows; choose a group that does, one table for the whole tensor, or leave the tensor out",
        group.div_ceil(2), 2 * group
    )]
    Group {
        /// Rows of the tensor, in units of vectors.
        rows: usize,
        /// Rows of a group asked for.
        group: usize,
    },
    /// Vectors run along rows, which must come in multiples of them.
    #[error(
        "its {rows} rows are no multiple of vectors of {vector}; use single numbers or leave the tensor out"
    )]
    Rows {
        /// Rows of the tensor.
        rows: usize,
        /// Length of a vector.
        vector: usize,
    },
    /// The number of elements or of importances is wrong.
    #[error("{what} has {found} elements, expected {expected}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that fits.
        expected: usize,
    },
    /// A weight is infinite or no number.
    #[error(
        "element {index} is {value}, which no table can hold; the weights are damaged: convert the model again"
    )]
    NotFinite {
        /// Its place.
        index: usize,
        /// The weight.
        value: f32,
    },
    /// An importance is negative, infinite or no number.
    #[error("importance {index} is {value}; importances are finite and not negative")]
    Importance {
        /// Its place.
        index: usize,
        /// The importance.
        value: f32,
    },
    /// Errors are passed on from number to number.
    #[error(
        "vectors of {vector} cannot be rounded with feedback; use single numbers, or leave the feedback out"
    )]
    FeedbackVector {
        /// Asked for.
        vector: usize,
    },
    /// The moments of a map's input are not finite, or those of no input at all.
    #[error(
        "the moments of the input are damaged at column {column}; calibrate with other text, or leave it out"
    )]
    Moments {
        /// The column.
        column: usize,
    },
}
