//! Tests of activities.
