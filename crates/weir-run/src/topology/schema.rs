//! The JSON schema of a topology file, so that an editor completes and checks its keys as they are typed.
//!
//! Rule: it is made of the types that read a file ([`super::tables`]), so it knows each key that they know and no other. The limits of a
//! value beyond its type are known to the reader alone.
//!
//! Source: JSON Schema 2020-12. Limits: `docs/weir.schema.json` is a copy for editors that fetch it; a test keeps it the same.

use schemars::transform::{RecursiveTransform, Transform};
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::tables::TopologyFile;

/// The schema.
pub fn schema() -> Value {
    let mut schema = schema_for!(TopologyFile);
    RecursiveTransform(without_null).transform(&mut schema);
    schema.to_value()
}

/// TOML has no null: a key that may be missing is missing.
fn without_null(schema: &mut Schema) {
    let is_null = |value: &Value| value == "null" || value["type"] == "null";
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|one| !is_null(one));
        if let [only] = &types[..] {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|one| !is_null(one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_for_editors_is_the_same() {
        let kept =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/weir.schema.json"));
        let made = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        assert!(kept.unwrap() == made, "run: weir check --schema > docs/weir.schema.json");
    }

    #[test]
    fn every_table_refuses_what_it_does_not_know_and_nothing_is_null() {
        let schema = schema();
        let tables = schema["$defs"].as_object().unwrap();
        assert!(tables.len() >= 11, "{:?}", tables.keys());
        let objects = tables.values().filter(|table| table["type"] == "object").chain([&schema]);
        objects.for_each(|table| assert_eq!(table["additionalProperties"], false, "{table}"));
        assert!(!schema.to_string().contains("null"));
        assert_eq!(tables["RouterTable"]["required"], serde_json::json!(["name"]));
        assert_eq!(schema.get("required"), None);
    }
}
