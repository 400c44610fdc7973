//! JSON documents on several traces: `{"version": N, "traces": [...]}`. Each trace is written as
//! soon as it is read, so memory does not grow with their number.

use serde::Serialize;

/// A document that is being written.
pub struct Traces {
    version: u32,
    begun: bool,
}

impl Traces {
    /// A document of this version, without traces.
    pub fn new(version: u32) -> Traces {
        Traces { version, begun: false }
    }

    /// The text of the next trace, with the text before it.
    pub fn next(&mut self, trace: &impl Serialize) -> serde_json::Result<String> {
        // Line ends within texts are escaped, so every line end here is between two fields.
        let trace = serde_json::to_string_pretty(trace)?.replace('\n', "\n    ");
        let before = if std::mem::replace(&mut self.begun, true) { ",".to_owned() } else { self.head() };
        Ok(format!("{before}\n    {trace}"))
    }

    /// The end of the document.
    pub fn end(self) -> String {
        if self.begun { "\n  ]\n}\n".to_owned() } else { self.head() + "]\n}\n" }
    }

    /// The end of the document, with one more field behind the traces.
    pub fn end_with(self, field: &str, value: &impl Serialize) -> serde_json::Result<String> {
        let value = serde_json::to_string_pretty(value)?.replace('\n', "\n  ");
        let mut text = self.end();
        text.truncate(text.len() - "\n}\n".len());
        Ok(format!("{text},\n  \"{field}\": {value}\n}}\n"))
    }

    fn head(&self) -> String {
        format!("{{\n  \"version\": {},\n  \"traces\": [", self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_pieces_equal_what_serde_writes_at_once() {
        let all = [json!({ "name": "a\nb", "list": [1, { "c": [] }] }), json!({}), json!([2])];
        for count in 0..=all.len() {
            let mut traces = Traces::new(3);
            let mut text: String = all[..count].iter().map(|trace| traces.next(trace).unwrap()).collect();
            text.push_str(&traces.end());
            #[derive(Serialize)]
            struct TracesDocument<'a> {
                version: u32,
                traces: &'a [serde_json::Value],
            }
            let whole = TracesDocument { version: 3, traces: &all[..count] };
            assert_eq!(text, serde_json::to_string_pretty(&whole).unwrap() + "\n");
            let mut traces = Traces::new(3);
            let mut text: String = all[..count].iter().map(|trace| traces.next(trace).unwrap()).collect();
            text.push_str(&traces.end_with("sum", &json!({ "samples": [1, 2] })).unwrap());
            #[derive(Serialize)]
            struct SummedTraces<'a> {
                #[serde(flatten)]
                whole: TracesDocument<'a>,
                sum: serde_json::Value,
            }
            let with_sum = SummedTraces { whole, sum: json!({ "samples": [1, 2] }) };
            assert_eq!(text, serde_json::to_string_pretty(&with_sum).unwrap() + "\n");
        }
    }
}
