//! The nearest of some words by letters that are changed, added or removed, as a guess at the one that was meant; and words in a row.

/// `; did you mean "x"?` for the candidate that is nearest to `word`, or nothing if none is near.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let far = word.chars().count() / 3 + 1;
    let nearest = candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .min();
    nearest.map_or(String::new(), |(_, candidate)| format!("; did you mean \"{candidate}\"?"))
}

/// Words as a sentence lists them: `a, b and c`; of many the first few.
pub fn and(words: &[&str]) -> String {
    listed(words, "and")
}

/// Words to choose from: `a, b or c`; of many the first few.
pub fn or(words: &[&str]) -> String {
    listed(words, "or")
}

fn listed(words: &[&str], last_of: &str) -> String {
    const SHOWN_MAX: usize = 8;
    match words {
        [] => "none".into(),
        [only] => (*only).into(),
        [first @ .., last] if words.len() <= SHOWN_MAX => format!("{} {last_of} {last}", first.join(", ")),
        _ => format!("{} and {} more", words[..SHOWN_MAX].join(", "), words.len() - SHOWN_MAX),
    }
}

/// The number of letters that must be changed, added or removed (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_not() {
        let names = ["internet", "cluster", "bulk"];
        assert_eq!(did_you_mean("intrenet", names), "; did you mean \"internet\"?");
        assert_eq!(did_you_mean("bulk2", names), "; did you mean \"bulk\"?");
        assert_eq!(did_you_mean("voice", names), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!((and(&[]), and(&["a"]), and(&["a", "b"])), ("none".into(), "a".into(), "a and b".into()));
        assert_eq!(and(&["a", "b", "c"]), "a, b and c");
        assert_eq!(and(&["a"; 10]), "a, a, a, a, a, a, a, a and 2 more");
    }
}
