//! A validator for the part of JSON Schema that the schemas of these tests use. It refuses unknown
//! keywords, so that nothing stays unchecked.

use serde_json::Value;

/// Checks a value against a schema.
///
/// # Errors
/// The first place at which the value does not follow the schema.
///
/// # Panics
/// If the schema itself is wrong or uses a keyword that is not known.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    follow(schema, schema, value, "$")
}

fn follow(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let rules = schema.as_object().unwrap_or_else(|| panic!("{at}: schema is no object"));
    for (keyword, rule) in rules {
        match keyword.as_str() {
            "$schema" | "$id" | "definitions" | "title" | "description" => {}
            "$ref" => {
                let path = rule.as_str().and_then(|r| r.strip_prefix('#')).expect("local reference");
                let target = root.pointer(path).unwrap_or_else(|| panic!("no {path} in the schema"));
                follow(root, target, value, at)?;
            }
            "type" => {
                let names: Vec<&str> = match rule {
                    Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                    name => vec![name.as_str().expect("type name")],
                };
                if !names.iter().any(|name| is(name, value)) {
                    return Err(format!("{at}: {value} is not {rule}"));
                }
            }
            "const" if rule == value => {}
            "enum" if rule.as_array().is_some_and(|all| all.contains(value)) => {}
            "const" | "enum" => return Err(format!("{at}: {value} is not {rule}")),
            "minimum" => {
                if value.as_f64() < rule.as_f64() {
                    return Err(format!("{at}: {value} is below {rule}"));
                }
            }
            "maximum" => {
                if value.as_f64() > rule.as_f64() {
                    return Err(format!("{at}: {value} is above {rule}"));
                }
            }
            // Of what is no object it asks nothing (JSON Schema Validation, 6.5.3).
            "required" if !value.is_object() => {}
            "required" => {
                for name in rule.as_array().expect("names").iter().filter_map(Value::as_str) {
                    if value.get(name).is_none() {
                        return Err(format!("{at}: {name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, property) in rule.as_object().expect("properties") {
                    if let Some(value) = value.get(name) {
                        follow(root, property, value, &format!("{at}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                assert_eq!(rule, &Value::Bool(false), "only false is known");
                let known = rules.get("properties").and_then(Value::as_object).expect("properties");
                for name in value.as_object().into_iter().flatten().map(|(name, _)| name) {
                    if !known.contains_key(name) {
                        return Err(format!("{at}: {name} is not in the schema"));
                    }
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    follow(root, rule, item, &format!("{at}[{i}]"))?;
                }
            }
            "anyOf" => {
                let tries: Vec<_> =
                    rule.as_array().expect("schemas").iter().map(|s| follow(root, s, value, at)).collect();
                if !tries.iter().any(Result::is_ok) {
                    return Err(format!("{at}: none of {tries:?}"));
                }
            }
            other => panic!("{at}: keyword {other} is not known to this validator"),
        }
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other} is not known to this validator"),
    }
}
