/// How calls are written between their marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSyntax {
    /// `[name(key='value'), …]`
    Pythonic,
    /// `{"name": "…", "arguments": {…}}`, several in a list.
    Json,
    /// `<function=name><parameter=key>value</parameter></function>`
    Xml,
}

/// What calls are written between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMarks {
    /// `<|tool_call_start|>` and `<|tool_call_end|>`.
    Special,
    /// `<tool_call>` and `</tool_call>`, a pair for each call.
    Tags,
}

/// How a model writes calls.
///
/// This decides how calls are written and which marks are looked for; between the marks every syntax is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolFormat {
    /// The syntax of calls.
    pub syntax: CallSyntax,
    /// What they stand between.
    pub marks: CallMarks,
}

impl Default for ToolFormat {
    /// That of LFM2 and LFM2.5, which their templates need not mention.
    fn default() -> Self {
        Self { syntax: CallSyntax::Pythonic, marks: CallMarks::Special }
    }
}

impl ToolFormat {
    /// The format the source of a chat template shows.
    pub fn detect(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        let marks = if has("<tool_call>") && !has("<|tool_call_start|>") {
            CallMarks::Tags
        } else {
            CallMarks::Special
        };
        let xml = ["<function=", "<parameter=", "<function name=", "<parameter name="].iter().any(|t| has(t));
        let syntax = match marks {
            _ if xml => CallSyntax::Xml,
            CallMarks::Tags => CallSyntax::Json,
            CallMarks::Special => CallSyntax::Pythonic,
        };
        Self { syntax, marks }
    }

    /// The marks to look for.
    pub(super) fn marks(self) -> &'static [CallMarks] {
        match self.marks {
            CallMarks::Special => &CallMarks::BOTH[..1],
            CallMarks::Tags => &CallMarks::BOTH,
        }
    }

    /// The text before calls.
    pub fn start(&self) -> &'static str {
        self.marks.start()
    }

    /// The text after calls.
    pub fn end(&self) -> &'static str {
        self.marks.end()
    }
}

impl CallMarks {
    pub(super) const BOTH: [Self; 2] = [Self::Special, Self::Tags];

    pub(super) fn start(self) -> &'static str {
        match self {
            Self::Special => "<|tool_call_start|>",
            Self::Tags => "<tool_call>",
        }
    }

    pub(super) fn end(self) -> &'static str {
        match self {
            Self::Special => "<|tool_call_end|>",
            Self::Tags => "</tool_call>",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_show_their_format() {
        use CallMarks::{Special, Tags};
        use CallSyntax::{Json, Pythonic, Xml};
        for (source, syntax, marks) in [
            ("", Pythonic, Special),
            ("List of tools: [", Pythonic, Special),
            ("{{ '<|tool_call_start|>[' }} <tool_call>", Pythonic, Special),
            ("<additional_tools>", Pythonic, Special),
            ("<tool_call>\n{{ '{\"name\": ' }}", Json, Tags),
            ("<tool_call>\n<function={{ f.name }}>", Xml, Tags),
            ("<|tool_call_start|><function name=\"{{ f.name }}\">", Xml, Special),
        ] {
            assert_eq!(ToolFormat::detect(source), ToolFormat { syntax, marks }, "{source}");
        }
        let fallback = include_str!("../template/fallback.jinja");
        assert_eq!(ToolFormat::detect(fallback), ToolFormat::default());
    }
}
