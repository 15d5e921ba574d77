mod block;
mod call;
mod choice;
mod declared;
mod format;
mod literal;
mod message;
mod parser;
mod write;
mod xml;

pub use choice::ToolChoice;
pub(crate) use declared::may_be_text;
pub use declared::{Tool, Tools};
pub use format::{CallMarks, CallSyntax, ToolFormat};
pub use message::{Answer, ToolCall};
pub use parser::{Delta, OutputOptions, OutputParser};
