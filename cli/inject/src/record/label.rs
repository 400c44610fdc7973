//! Labels that the user gives a trace: `--label build=1234` becomes the METADATA `label.build`.

/// A label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub key: String,
    /// May be empty.
    pub value: String,
}

/// Most bytes of a key.
const LONGEST_KEY: usize = 64;
/// Most bytes of a value.
const LONGEST_VALUE: usize = 1024;

impl Label {
    /// Reads `KEY=VALUE`. Keys are letters, digits, `_`, `-` and `.`, so that they can be written
    /// in any query.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Label, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("it has no '=': write KEY=VALUE".to_owned());
        };
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        if key.is_empty() || key.len() > LONGEST_KEY || !key.chars().all(fits) {
            return Err(format!(
                "the key must be 1 to {LONGEST_KEY} bytes of letters, digits, '_', '-' and '.'"
            ));
        }
        if value.len() > LONGEST_VALUE || value.contains('\0') {
            return Err(format!("the value is longer than {LONGEST_VALUE} bytes, or has a zero in it"));
        }
        Ok(Label { key: key.to_owned(), value: value.to_owned() })
    }

    /// Its METADATA key.
    pub(crate) fn metadata_key(&self) -> String {
        format!("label.{}", self.key)
    }
}
