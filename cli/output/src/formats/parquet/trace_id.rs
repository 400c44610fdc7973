//! The id of a trace in a dataset.

use stk_profile::profile::Profile;

/// The id of a trace in a dataset: its content, or for a profile that is of no file its UUID.
pub(super) fn trace_id(profile: &Profile) -> String {
    match &profile.trace.content {
        Some(content) => content.digest.to_string(),
        None => profile.trace.trace_id.clone(),
    }
}
