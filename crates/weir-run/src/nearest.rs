//! The nearest of some words by letters that are changed, added or removed, as a guess at the one that was meant; and words in a row.

/// The clause that an interface has another name than before.
pub fn called_now(before: &str, now: &str) -> String {
    format!("; the interface that was {before} is called {now} now")
}

/// `; did you mean "x"?` for the candidate that is nearest to `word`, or nothing if none is near; of several, the first by letters. What is
/// near has a letter of `word` at least, so one name of one letter is never near to another.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let letters: Vec<char> = word.chars().collect();
    let (mut other, mut row) = (Vec::new(), Vec::new());
    // A file with thousands of names may have as many wrong ones, so what is farther than the nearest so far is not measured.
    let mut most = letters.len() / 3 + 1;
    let mut nearest: Option<(usize, &str)> = None;
    for candidate in candidates {
        other.clear();
        other.extend(candidate.chars());
        let most_here = most.min(letters.len().max(other.len()).saturating_sub(1));
        if let Some(distance) = distance_within(&letters, &other, most_here, &mut row) {
            most = distance;
            nearest = Some(nearest.map_or((distance, candidate), |before| before.min((distance, candidate))));
        }
    }
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

/// The number of letters that must be changed, added or removed (Levenshtein), if it is not above `most`; `row` is room to reckon in.
fn distance_within(mut a: &[char], mut b: &[char], most: usize, row: &mut Vec<usize>) -> Option<usize> {
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    while let ([x, a_rest @ ..], [y, b_rest @ ..]) = (a, b)
        && x == y
    {
        (a, b) = (a_rest, b_rest);
    }
    while let ([a_rest @ .., x], [b_rest @ .., y]) = (a, b)
        && x == y
    {
        (a, b) = (a_rest, b_rest);
    }
    row.clear();
    row.extend(0..=b.len());
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        let mut least = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
            least = least.min(row[j + 1]);
        }
        // No row after this has less.
        if least > most {
            return None;
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The distance, reckoned from all pairs of letters.
    fn levenshtein(a: &[char], b: &[char]) -> usize {
        let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first(), b.split_first()) else {
            return a.len().max(b.len());
        };
        let others = [levenshtein(a_rest, b), levenshtein(a, b_rest)].map(|distance| distance + 1);
        let both = levenshtein(a_rest, b_rest) + usize::from(x != y);
        others.into_iter().fold(both, usize::min)
    }

    proptest! {
        #[test]
        fn the_distance_is_levenshteins(a in "[ab\u{e9}]{0,5}", b in "[ab\u{e9}]{0,5}", most in 0usize..6) {
            let [a, b] = [a, b].map(|text| text.chars().collect::<Vec<_>>());
            let expected = Some(levenshtein(&a, &b)).filter(|distance| *distance <= most);
            prop_assert_eq!(distance_within(&a, &b, most, &mut Vec::new()), expected);
        }
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_not() {
        let names = ["internet", "cluster", "bulk"];
        assert_eq!(did_you_mean("intrenet", names), "; did you mean \"internet\"?");
        assert_eq!(did_you_mean("bulk2", names), "; did you mean \"bulk\"?");
        assert_eq!(did_you_mean("voice", names), "");
        for word in ["b", "", "cd"] {
            assert_eq!(did_you_mean(word, ["a", "x"]), "", "{word}");
        }
        assert_eq!(did_you_mean("bb", ["a", "b"]), "; did you mean \"b\"?");
        assert_eq!(did_you_mean("a", ["b", "ab"]), "; did you mean \"ab\"?");
        let distance = |a: &str, b: &str, most| {
            let [a, b] = [a, b].map(|text| text.chars().collect::<Vec<_>>());
            distance_within(&a, &b, most, &mut Vec::new())
        };
        assert_eq!(distance("kitten", "sitting", 9), Some(3));
        assert_eq!((distance("kitten", "sitting", 3), distance("kitten", "sitting", 2)), (Some(3), None));
        assert_eq!((distance("", "", 0), distance("veth-a1", "veth-b1", 1)), (Some(0), Some(1)));
        assert_eq!((distance("aab", "ab", 1), distance("ab", "aab", 0)), (Some(1), None));
        // Of several that are as near, the first by letters, wherever it stands.
        assert_eq!(did_you_mean("x1", ["x3", "x2", "x4"]), "; did you mean \"x2\"?");
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!((and(&[]), and(&["a"]), and(&["a", "b"])), ("none".into(), "a".into(), "a and b".into()));
        assert_eq!(and(&["a", "b", "c"]), "a, b and c");
        assert_eq!(and(&["a"; 10]), "a, a, a, a, a, a, a, a and 2 more");
    }
}
