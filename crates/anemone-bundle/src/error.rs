use std::io;
use std::path::PathBuf;

use anemone_mil::remedy;

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing failed.
    #[error("{}{}", path.display(), remedy(source))]
    Io {
        /// File in question.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The recorded calls cannot be read or written.
    #[error("{} {problem}; make the bundle again with convert or palettize, or remove the file to run the bundle untried", path.display())]
    Canary {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another conversion is writing there.
    #[error("another conversion is writing to {}; wait for it or choose another place", .0.display())]
    Busy(PathBuf),
    /// No directory can be made there.
    #[error("no directory can be made at {}; choose a place below a directory that you may write to", path.display())]
    Place {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The output is there already.
    #[error("{} exists; choose another place or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The output is there already, and replacing it would remove something else than a bundle.
    #[error("{} is not a bundle, and only bundles are replaced; choose another place or remove it first", .0.display())]
    NotReplaceable(PathBuf),
    /// The directory is no bundle.
    #[error("{} is not a bundle: {problem}", path.display())]
    NotABundle {
        /// The directory.
        path: PathBuf,
        /// What is missing or wrong.
        problem: String,
    },
    /// The directory is something else that anemone writes.
    #[error("{} is {what}", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
        /// What it is and what it is for.
        what: &'static str,
    },
    /// The manifest does not fit the files, or itself.
    #[error("{}: `{key}` {problem}; the bundle is damaged or was changed: copy it again or convert the model again", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Key in question.
        key: String,
        /// What is there and what is expected.
        problem: String,
    },
    /// The bundle was made by another version.
    #[error("{} has bundle format {found}, this version reads {supported}; convert the model again", path.display())]
    Version {
        /// The directory.
        path: PathBuf,
        /// Format of the bundle.
        found: u64,
        /// Format read here.
        supported: u64,
    },
    /// A file's content is not what the manifest says.
    #[error("{} differs from the manifest (hash {found}, expected {expected}); the bundle is damaged: convert the model again", path.display())]
    Hash {
        /// The file or package.
        path: PathBuf,
        /// Recorded.
        expected: String,
        /// Found.
        found: String,
    },
    /// A weight cannot be compressed as asked, or was not written as it was made.
    #[error("`{tensor}`: {problem}")]
    Compression {
        /// Name of the checkpoint tensor.
        tensor: String,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// The bundle is a candidate that its gate has not passed.
    #[error("{} is a rejected candidate ({verdict}) and not for use; use the bundle it was made from, or palettize that with more bits or smaller groups", path.display())]
    Rejected {
        /// The directory.
        path: PathBuf,
        /// What was found and what was asked for.
        verdict: String,
    },
    /// The weights are compressed already.
    #[error("{} holds weights of precision {precision}; compress the fp16 bundle it was made from, or convert the checkpoint with --precision", path.display())]
    Compressed {
        /// The directory.
        path: PathBuf,
        /// As `--precision` spells it.
        precision: String,
    },
    /// A package cannot be written or read.
    #[error(transparent)]
    Mil(#[from] anemone_mil::Error),
    /// The files it keeps of a checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] anemone_checkpoint::Error),
}
