//! Known answers, and the parts of a key that must never be seen.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn transform(algorithm: Algorithm, key: &str) -> Transform {
    Transform::new(algorithm, &KeyMaterial::new(algorithm, &hex(key)).unwrap()).unwrap()
}

/// Seals and opens with this IV; the header before it is that of the associated data.
fn check(transform: &Transform, associated: Associated, iv: &str, plain: &str, sealed: &str) {
    let (plain, expected) = (hex(plain), hex(sealed));
    let mut packet = associated.spi.to_be_bytes().to_vec();
    packet.extend((associated.sequence as u32).to_be_bytes());
    packet.extend(hex(iv));
    let payload_at = packet.len();
    packet.extend(&plain);
    let mut icv = [0; ICV_LEN_MAX];
    transform.seal(associated, &mut packet, payload_at, &mut icv).unwrap();
    packet.extend(icv);
    assert_eq!(packet[payload_at..], expected);
    transform.open(associated, &mut packet, payload_at).unwrap();
    assert_eq!(packet[payload_at..][..plain.len()], plain);
}

/// draft-mcgrew-gcm-test-01, the first case: an ESP packet with an extended sequence number.
#[test]
fn aes128_gcm_with_extended_numbers() {
    check(
        &transform(Algorithm::Aes128Gcm, "4c80cdefbb5d10da906ac73c3613a634 2e443b68"),
        Associated { spi: 0x4321, sequence: 0x8765_4321_0000_0000, extended: true },
        "4956ed7e3b244cfe",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f75647003736970096379\
         62657263697479 02646b000021000101020201",
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e18\
         84f5ff6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4",
    );
}

/// The case of that draft for AES-256.
#[test]
fn aes256_gcm() {
    check(
        &transform(Algorithm::Aes256Gcm, &("abbccddef00112233445566778899aab".repeat(2) + "11223344")),
        Associated { spi: 0x4a2c_bfe3, sequence: 2, extended: false },
        "0102030405060708",
        "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b40101040201020201",
        "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99def842d8e\
         b335f4eecfdbf831824b4c4915956c96",
    );
}

/// RFC 7634 appendix A.
#[test]
fn chacha20_poly1305_of_the_rfc() {
    check(
        &transform(
            Algorithm::ChaCha20Poly1305,
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3",
        ),
        Associated { spi: 0x0102_0304, sequence: 5, extended: false },
        "1011121314151617",
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f1011121314151617\
         18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
        "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f72aa71e7c\
         4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0\
         76aaa8266b7fb0f7b11b369907e1ad43",
    );
}

/// RFC 4868 section 2.7.2.1, AUTH256-1 and AUTH256-2, cut to 128 bits.
#[test]
fn hmac_sha256_128_of_the_rfc() {
    let cases = [
        ([0x0b; 32], "Hi There", "198a607eb44bfbc69903a0f1cf2bbdc5"),
        (
            *b"JefeJefeJefeJefeJefeJefeJefeJefe",
            "what do ya want for nothing?",
            "167f928588c5cc2eef8e3093caa0e87c",
        ),
    ];
    for (key, data, expected) in cases {
        let algorithm = Algorithm::NullHmacSha256;
        let transform = Transform::new(algorithm, &KeyMaterial::new(algorithm, &key).unwrap()).unwrap();
        let associated = Associated { spi: 0, sequence: 0, extended: false };
        let mut packet = data.as_bytes().to_vec();
        let mut icv = [0; ICV_LEN_MAX];
        transform.seal(associated, &mut packet, 0, &mut icv).unwrap();
        assert_eq!(icv[..], hex(expected));
        packet.extend(icv);
        assert_eq!(transform.open(associated, &mut packet, 0), Ok(()));
        packet[0] ^= 1;
        assert_eq!(transform.open(associated, &mut packet, 0), Err(Unproven));
    }
}

#[test]
fn the_upper_half_of_an_extended_number_is_proven() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.icv_len() > 0) {
        let key = "5a".repeat(algorithm.key_len());
        let transform = transform(algorithm, &key);
        let associated = Associated { spi: 1, sequence: 1 << 32 | 9, extended: true };
        let mut packet = vec![0; 40];
        let mut icv = [0; ICV_LEN_MAX];
        transform.seal(associated, &mut packet, 16, &mut icv).unwrap();
        packet.extend(icv);
        for other in [9, 2 << 32 | 9] {
            let other = Associated { sequence: other, ..associated };
            assert_eq!(transform.open(other, &mut packet.clone(), 16), Err(Unproven), "{algorithm:?}");
        }
        assert_eq!(transform.open(associated, &mut packet, 16), Ok(()));
    }
}

#[test]
fn keys_of_a_wrong_length_are_refused() {
    for algorithm in Algorithm::ALL {
        let needed = algorithm.key_len();
        for given in (0..40).filter(|&given| given != needed) {
            let error = KeyMaterial::new(algorithm, &vec![1; given]).unwrap_err();
            assert_eq!(error, KeyLength { needed, given });
        }
    }
}

#[test]
fn nothing_of_a_key_is_printed_and_it_is_wiped() {
    let algorithm = Algorithm::Aes128Gcm;
    let mut material = KeyMaterial::new(algorithm, &[0xab; 20]).unwrap();
    let transform = Transform::new(algorithm, &material).unwrap();
    let printed = format!("{material:?} {transform:?} {transform:#?}");
    assert_eq!(printed, "KeyMaterial(..) Transform(aes128-gcm) Transform(aes128-gcm)");
    material.zeroize();
    assert_eq!((material.bytes, material.len), ([0; KEY_LEN_MAX], 0));
}
