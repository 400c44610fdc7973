//! What stk keeps beside outputs: records of a batch, locks, the version of a dataset.

use crate::command::folder;
use crate::mutated::Input;
use std::sync::OnceLock;
use stk::batch::{Record, Recorded};
use stk::dataset::Dataset;
use stk_base::files::Below;
use stk_output::formats::{ConversionFacts, lock_holder};
use stk_tests::hostile::shown::harm;
use stk_tests::synth::Choices;
use stk_tests::wrong;

const OUTPUT: &str = "main 40\n";
const LOCK: &[u8] = br#"{"pid":4194305,"host":"lab","beat":7}"#;
const VERSION: &[u8] = br#"{"dataset":"stk","tables_version":3}"#;

/// A record, a lock or a dataset's version with changes: a record counts only for the output that
/// it fits, and what is shown of a lock is text.
///
/// # Panics
///
/// When that does not hold.
pub fn record(data: &[u8]) {
    let mut input = Input(data);
    let which = input.below(3);
    let mut text = match which {
        0 => written().1.clone(),
        1 => LOCK.to_vec(),
        _ => VERSION.to_vec(),
    };
    input.changes(|input| wrong::json(&mut text, input));
    match which {
        0 => {
            let (output, sound) = written();
            let at = folder().join("_stk/done/a.folded.json");
            std::fs::write(at, &text).expect("writable");
            let found = Record::of(output, "key").expect("a regular file");
            if let Recorded::Done(_) = found {
                let stated: Stated = serde_json::from_slice(&text).expect("JSON");
                assert!(stated.key == "key" && stated.bytes == OUTPUT.len(), "{stated:?}");
            }
            assert!(text != *sound || matches!(found, Recorded::Done(_)));
        }
        1 => {
            let (holder, _) = lock_holder(&text);
            assert!(harm(holder.as_bytes()).is_none() && !holder.contains('\n'), "{holder:?}");
        }
        _ => {
            let at = folder().join("dataset");
            std::fs::create_dir_all(&at).expect("writable");
            std::fs::write(at.join("_stk.json"), &text).expect("writable");
            // It has no tables.
            let read = Dataset::open(&at);
            assert!(read.is_err() || !cfg!(feature = "datasets"), "{read:?}");
        }
    }
}

/// What makes a record one of that output. What else it has may be anything, in texts that no
/// reader takes as such.
#[derive(Debug, serde::Deserialize)]
struct Stated {
    key: String,
    bytes: usize,
}

/// An output, and its record.
fn written() -> &'static (Below, Vec<u8>) {
    static WRITTEN: OnceLock<(Below, Vec<u8>)> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let output = Below::folder(&folder()).expect("a folder").join("a.folded");
        std::fs::write(output.path(), OUTPUT).expect("writable");
        let facts = ConversionFacts { samples: 40, ..ConversionFacts::default() };
        Record::write(&output, "key", facts).expect("writable");
        let text = std::fs::read(folder().join("_stk/done/a.folded.json")).expect("a record");
        (output, text)
    })
}
