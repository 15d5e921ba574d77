use std::io;
use std::path::PathBuf;

use anemone_tensor::TensorError;

use crate::text::quote;

/// What can be wrong with a checkpoint or its download. Every message names the culprit and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another store of weights (a bundle) cannot give a tensor.
    #[error("{store}: tensor `{tensor}` {problem}")]
    Stored {
        /// Where the weights lie.
        store: String,
        /// Name of the tensor.
        tensor: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The operating system refused an operation on a path.
    #[error("cannot {action} {}: {source}; {}", path.display(), io_remedy(source))]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is nothing at the path given.
    #[error("{}: no such file or directory; pass a model directory, or a hub id such as `org/name`", path.display())]
    NoSuchPath {
        /// The path given.
        path: PathBuf,
    },
    /// A GGUF file is damaged, or of a kind that is not read.
    #[error("{file}: {problem} at byte {offset}; {remedy}")]
    Gguf {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
        /// Where.
        offset: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// A key of a GGUF file's metadata is missing or holds something else.
    #[error("{file}: key `{key}` {problem}")]
    GgufKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A tensor of a GGUF file cannot be used.
    #[error("{file}: tensor `{tensor}` {problem}")]
    GgufTensor {
        /// The file.
        file: String,
        /// Name in the file.
        tensor: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A path is neither a snapshot directory nor a file of one.
    #[error("{}: {found}; {remedy}", path.display())]
    Unsupported {
        /// The path given.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A name that should be a regular file is something else (directory, device, dangling link).
    #[error("{file}: not a readable regular file ({found}); replace it with the downloaded file")]
    NotAFile {
        /// File with its directory.
        file: String,
        /// What it is instead.
        found: &'static str,
    },
    /// A file the snapshot must have is absent.
    #[error("{dir}: `{file}` is missing; {remedy}")]
    MissingFile {
        /// The snapshot.
        dir: String,
        /// The absent file.
        file: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A file holds something other than its name says.
    #[error("{file}: this is {found}; {remedy}")]
    Impostor {
        /// File with its directory.
        file: String,
        /// What it is.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A text file is larger than any real one.
    #[error(
        "{file}: {found} bytes, and at most {limit} are read; this is not the file it claims to be, download it again"
    )]
    TooLarge {
        /// File with its directory.
        file: String,
        /// Its size in bytes.
        found: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A text file is not UTF-8.
    #[error("{file}: not UTF-8 at byte {offset}; save it as UTF-8 or download it again")]
    NotUtf8 {
        /// File with its directory.
        file: String,
        /// First bad byte.
        offset: usize,
    },
    /// A JSON file does not parse.
    #[error("{file}: {source}; correct the file there or download it again")]
    Json {
        /// File with its directory.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser found.
        #[source]
        source: serde_json::Error,
    },
    /// A JSON file is not an object at the top.
    #[error("{file}: expected a JSON object at line 1, found {found}; download the file again")]
    NotAnObject {
        /// File with its directory.
        file: String,
        /// The kind of value found.
        found: &'static str,
    },
    /// A JSON key holds a value of the wrong kind.
    #[error("{file}: key `{key}` is {}, expected {expected}; correct or remove the key", quote(found))]
    Key {
        /// File with its directory.
        file: String,
        /// The key.
        key: String,
        /// What would be right.
        expected: &'static str,
        /// What is there, as JSON.
        found: String,
    },
    /// No weights that can be read.
    #[error("{dir}: no safetensors weights; found {present}; {remedy}")]
    NoWeights {
        /// The snapshot.
        dir: String,
        /// What is there.
        present: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Several candidates for the weights and no rule to choose.
    #[error("{dir}: cannot tell which files hold the weights: {present}; {remedy}")]
    AmbiguousWeights {
        /// The snapshot.
        dir: String,
        /// The candidates.
        present: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A shard is absent.
    #[error("{dir}: shard `{shard}` is missing{}; download that file again", for_tensor(tensor.as_ref()))]
    MissingShard {
        /// The snapshot.
        dir: String,
        /// The absent file.
        shard: String,
        /// A tensor it holds, when an index says so.
        tensor: Option<String>,
    },
    /// The index promises a tensor that no shard holds.
    #[error(
        "{index}: tensor {} is not in `{shard}` nor in any other shard; download the shard and the index again",
        quote(tensor)
    )]
    IndexedTensorAbsent {
        /// The index file.
        index: String,
        /// The tensor.
        tensor: String,
        /// Where the index says it is.
        shard: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error(
        "{dir}: tensor {} is in both `{first}` and `{second}`; remove the file left over from another download",
        quote(tensor)
    )]
    TensorInTwoShards {
        /// The snapshot.
        dir: String,
        /// The tensor.
        tensor: String,
        /// One holder.
        first: String,
        /// The other.
        second: String,
    },
    /// A safetensors file is too short to have a header.
    #[error(
        "{file}: {found} bytes, but a safetensors file starts with 8 bytes of header length at byte 0; download it again"
    )]
    NoHeader {
        /// File with its directory.
        file: String,
        /// Its size in bytes.
        found: usize,
    },
    /// A safetensors header is longer than the file or than the format allows.
    #[error(
        "{file}: header length at byte 0 is {length}, but {available} bytes follow and {limit} is the format's limit; \
         the file is truncated or not safetensors, download it again"
    )]
    HeaderLength {
        /// File with its directory.
        file: String,
        /// The length stated.
        length: u64,
        /// Bytes after the length field.
        available: usize,
        /// The largest header allowed.
        limit: u64,
    },
    /// A safetensors header is not the JSON it must be.
    #[error(
        "{file}: bad safetensors header at byte {offset}{}: {source}; download the file again",
        for_tensor(tensor.as_ref())
    )]
    HeaderJson {
        /// File with its directory.
        file: String,
        /// Byte in the file.
        offset: usize,
        /// The entry being read.
        tensor: Option<String>,
        /// What the parser found.
        #[source]
        source: serde_json::Error,
    },
    /// A safetensors header has an entry that cannot be true.
    #[error("{file}: tensor {}: {problem}; the header is corrupt, download the file again", quote(tensor))]
    TensorInfo {
        /// File with its directory.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong, with expected and found values.
        problem: String,
    },
    /// Tensor data ends past the end of the file.
    #[error(
        "{file}: tensor {} ends at byte {expected} but the file has {found} bytes; \
         the file is truncated, download it again",
        quote(tensor)
    )]
    Truncated {
        /// File with its directory.
        file: String,
        /// The first tensor that is cut.
        tensor: String,
        /// Byte in the file where its data ends.
        expected: u64,
        /// Size of the file.
        found: usize,
    },
    /// Bytes follow the last tensor.
    #[error(
        "{file}: {extra} bytes follow the last tensor, from byte {offset}; the file is corrupt, download it again"
    )]
    TrailingBytes {
        /// File with its directory.
        file: String,
        /// First byte that belongs to no tensor.
        offset: usize,
        /// How many.
        extra: usize,
    },
    /// A tensor asked for is not in the checkpoint.
    #[error(
        "tensor {} is not in {checkpoint}; the checkpoint is incomplete or of another architecture",
        quote(name)
    )]
    NoTensor {
        /// The name asked for.
        name: String,
        /// Where it was looked for.
        checkpoint: String,
    },
    /// A tensor's element type is carried by the format but not by this program.
    #[error(
        "{file}: tensor {} has element type {}, and only F32, F16, BF16, I64, I32 and U8 can be read; \
         use a checkpoint stored in one of these",
        quote(name),
        quote(dtype)
    )]
    UnsupportedDType {
        /// File with its directory.
        file: String,
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: String,
    },
    /// Bytes and shape of a tensor disagree.
    #[error("{file}: tensor {}: {source}; download the file again", quote(name))]
    Tensor {
        /// File with its directory.
        file: String,
        /// The tensor.
        name: String,
        /// What disagrees.
        #[source]
        source: TensorError,
    },
    /// A hub spec is not `org/name` or `org/name@revision`.
    #[error("hub id {}: {problem}; write `org/name` or `org/name@revision`", quote(spec))]
    HubSpec {
        /// The spec given.
        spec: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The hub options do not make sense.
    #[error("hub option `{option}`: {problem}; {remedy}")]
    HubOption {
        /// Which option.
        option: &'static str,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The snapshot is not in the cache and the network may not be used.
    #[error(
        "`{repo}` at `{revision}` is not complete in {}: {missing}; fetch it once without offline mode, \
         or pass a local model directory",
        cache.display()
    )]
    HubOffline {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// The cache looked into.
        cache: PathBuf,
        /// What is missing from it.
        missing: String,
    },
    /// The hub has no such repository or revision.
    #[error(
        "`{repo}` at `{revision}` was not found at {endpoint} (HTTP 404); check the spelling and the revision"
    )]
    HubNotFound {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// The hub asked.
        endpoint: String,
    },
    /// The hub wants to know who asks.
    #[error(
        "access to `{repo}` was refused (HTTP {status}): the model is gated, private or misspelt; \
         accept its terms at {endpoint}/{repo} and pass an access token (`HF_TOKEN`)"
    )]
    HubDenied {
        /// `org/name`.
        repo: String,
        /// HTTP status.
        status: u16,
        /// The hub asked.
        endpoint: String,
    },
    /// The hub answered with something that makes no sense.
    #[error("{url}: {problem}; try again later or check the hub endpoint")]
    HubResponse {
        /// The address asked.
        url: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The network failed.
    #[error(
        "{url}: {source}; check the connection and run the command again, the download resumes where it stopped"
    )]
    HubNetwork {
        /// The address asked.
        url: String,
        /// What failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process downloads the same file.
    #[error("{}: another process is downloading this file; wait for it and run the command again", path.display())]
    HubBusy {
        /// The lock file.
        path: PathBuf,
    },
    /// A finished download is not the file the hub announced.
    #[error(
        "{repo}: `{file}` arrived damaged ({problem}); the partial file was removed, run the command again"
    )]
    HubDamaged {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// Expected and found.
        problem: String,
    },
}

fn io_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there and run the command again"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "check the permissions",
        io::ErrorKind::OutOfMemory => "free memory, or raise the limit set by ulimit -v",
        _ => "check that the path exists and is readable",
    }
}

fn for_tensor(tensor: Option<&String>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" (tensor {})", quote(tensor)))
}
