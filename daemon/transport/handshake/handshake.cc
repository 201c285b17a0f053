#include "daemon/transport/handshake/handshake.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "common/base/secret.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/protect/hkdf.h"

namespace tensorlane::handshake {
namespace {

using Piece = std::span<const std::byte>;

// Of everything in a message but its MAC.
template <typename Message>
Piece said(const Message& message) {
  return bytes_of(message).first(sizeof message - kMacBytes);
}

// Stands in where there is no key, so that the answer takes as long and is never right.
const ports::PairKey& decoy() {
  static const ports::PairKey key = [] {
    ports::PairKey random;
    randombytes_buf(random.data(), random.size());
    return random;
  }();
  return key;
}

const ports::PairKey& key_of(const Job* job, const Hello& hello) {
  if (job == nullptr) return decoy();
  const bool comes_to_us = hello.to == job->self().value;
  const ports::PairKey* key = job->key(HostIndex(comes_to_us ? hello.from : hello.to));
  return key != nullptr ? *key : decoy();
}

// The role, which is as long for every message, keeps their MACs apart; the hello fixes how long all parts are.
Mac mac_of(const Job* job, const Hello& hello, std::string_view role, std::initializer_list<Piece> parts) {
  crypto_auth_hmacsha256_state state;
  const ports::PairKey& key = key_of(job, hello);
  const auto update = [&state](const void* bytes, std::size_t size) {
    crypto_auth_hmacsha256_update(&state, static_cast<const unsigned char*>(bytes), size);
  };
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  constexpr std::string_view kProtocol = "tensorlane data 3 ";
  update(kProtocol.data(), kProtocol.size());
  update(role.data(), role.size());
  const Piece hello_bytes = said(hello);
  update(hello_bytes.data(), hello_bytes.size());
  for (const Piece part : parts) update(part.data(), part.size());
  Mac mac;
  static_assert(kMacBytes == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_final(&state, mac.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}

Piece bytes_of_nonce(const Nonce& nonce) {
  return std::as_bytes(std::span(nonce));
}

}  // namespace

void JobTable::add(JobPtr job) {
  const JobId id = job->id();
  live_[id] = std::move(job);
}

void JobTable::remove(JobId job) {
  auto node = live_.extract(job);
  if (node.empty()) return;
  ended_.push_back(std::move(node.mapped()));
  if (ended_.size() > kMaxEnded) ended_.pop_front();
}

JobPtr JobTable::find(JobId job) const {
  const auto found = live_.find(job);
  return found == live_.end() ? nullptr : found->second;
}

JobPtr JobTable::find_ended(JobId job, Epoch epoch) const {
  const auto found =
      std::ranges::find_if(ended_, [&](const JobPtr& j) { return j->id() == job && j->epoch() == epoch; });
  return found == ended_.end() ? nullptr : *found;
}

Nonce random_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Hello make_hello(const Job& job, HostIndex to, ClassId cls, std::uint16_t parameter_bytes,
                 const Protection& protection) {
  Hello hello;
  hello.job = job.id().value;
  hello.epoch = job.epoch().value;
  hello.from = job.self().value;
  hello.to = to.value;
  hello.cls = cls.value;
  hello.rail = job.rail().value;
  hello.parameter_bytes = parameter_bytes;
  hello.protection = protection.level;
  if (protection.level != DataProtection::kNone) hello.ciphers = protection.ciphers;
  hello.nonce = random_nonce();
  hello.mac = hello_mac(job, hello);
  return hello;
}

Verdicted check_head(const Head& head) {
  if (head.magic != kHandshakeMagic) {
    return {Refusal::kNotTensorlane,
            fmt::format("handshake magic {:#010x}, expected {:#010x}", head.magic, kHandshakeMagic)};
  }
  if (head.version != kHandshakeVersion) {
    return {Refusal::kVersion,
            fmt::format("handshake version {}, this host speaks {}", head.version, kHandshakeVersion)};
  }
  return {};
}

Verdicted check_peer(const Hello& hello, const JobTable& jobs, JobPtr* job) {
  const JobPtr live = jobs.find(JobId(hello.job));
  const JobPtr ended = jobs.find_ended(JobId(hello.job), Epoch(hello.epoch));
  const bool of_live = live && live->epoch().value == hello.epoch;
  const JobPtr& meant = of_live ? live : ended;
  const bool right = same_mac(hello.mac, mac_of(meant.get(), hello, "hello    ", {}));
  if (!meant && !live) return {Refusal::kJob, fmt::format("job {:#018x} is not known to this host", hello.job)};
  if (!meant) {
    return {hello.epoch > live->epoch().value ? Refusal::kEpochNewer : Refusal::kEpochOlder,
            fmt::format("epoch {} of the job, this host has epoch {}", hello.epoch, live->epoch().value)};
  }
  if (hello.to != meant->self().value) {
    return {Refusal::kHost, fmt::format("a flow to host {}, this is host {}", hello.to, meant->self().value)};
  }
  if (hello.from >= hello.to) {
    return {Refusal::kHost,
            fmt::format("a flow from host {} to host {}: the lower index connects", hello.from, hello.to)};
  }
  if (!right) {
    return {Refusal::kKey,
            fmt::format("it does not hold the key of hosts {} and {} for the job", hello.from, hello.to)};
  }
  *job = meant;
  return {};
}

Verdicted check_flow(const Hello& hello, ClassId cls, const ExchangeFactory& exchanges, const JobPtr& job,
                     const JobTable& jobs) {
  if (jobs.find(job->id()) != job) return {Refusal::kJob, "the job has ended on this host"};
  if (hello.rail != job->rail().value) {
    return {Refusal::kHost, fmt::format("a flow of rail {}, this is rail {} of host {}", hello.rail, job->rail().value,
                                        job->self().value)};
  }
  if (hello.cls != cls.value) {
    return {Refusal::kClass,
            fmt::format("a flow of class {} on the port of class {}", class_name(ClassId(hello.cls)), class_name(cls))};
  }
  const Protection& mine = exchanges.protection;
  if (hello.protection != mine.level) {
    return {Refusal::kProtection,
            fmt::format("data_protection is {} on host {} and {} on host {}", data_protection_name(hello.protection),
                        hello.from, data_protection_name(mine.level), hello.to)};
  }
  if (mine.level != DataProtection::kNone && common_cipher(hello, mine) == protect::Cipher::kNone)
    return {Refusal::kProtection, "the hosts have no cipher for data_protection in common"};
  const std::uint16_t parameter_bytes = exchanges.bytes_for(*job);
  if (hello.parameter_bytes != parameter_bytes) {
    return {Refusal::kParameters,
            fmt::format("{} bytes of parameters, expected {}", hello.parameter_bytes, parameter_bytes)};
  }
  return {};
}

Mac hello_mac(const Job& job, const Hello& hello) {
  return mac_of(&job, hello, "hello    ", {});
}

Mac challenge_mac(const Job& job, const Hello& hello, const Challenge& challenge) {
  return mac_of(&job, hello, "challenge", {said(challenge)});
}

Mac proof_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Proof& proof, Parameters client) {
  return mac_of(&job, hello, "proof    ", {bytes_of_nonce(server_nonce), said(proof), client});
}

Mac verdict_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Verdict& verdict,
                Parameters client, Parameters server) {
  return mac_of(&job, hello, "verdict  ", {bytes_of_nonce(server_nonce), said(verdict), client, server});
}

Mac ready_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Ready& ready, Parameters client,
              Parameters server) {
  return mac_of(&job, hello, "ready    ", {bytes_of_nonce(server_nonce), said(ready), client, server});
}

Mac exchange_secret(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client,
                    Parameters server) {
  return mac_of(&job, hello, "exchange ", {bytes_of_nonce(server_nonce), client, server});
}

protect::Cipher common_cipher(const Hello& hello, const Protection& protection) {
  if (protection.level == DataProtection::kNone) return protect::Cipher::kNone;
  return protect::best_of(static_cast<protect::Ciphers>(hello.ciphers & protection.ciphers));
}

protect::RecordSecrets record_secrets(const Job& job, const Hello& hello, const Nonce& server_nonce,
                                      protect::Cipher cipher) {
  std::array<std::byte, 2 * kNonceBytes> salt;
  std::memcpy(salt.data(), hello.nonce.data(), kNonceBytes);
  std::memcpy(salt.data() + kNonceBytes, server_nonce.data(), kNonceBytes);
  protect::Key pseudorandom_key;
  const Wipe wipe(pseudorandom_key);
  protect::hkdf_extract(salt, key_of(&job, hello), pseudorandom_key);
  const auto expand = [&](std::string_view direction, protect::Key& secret) {
    std::vector<std::byte> info;
    for (const Piece piece : {std::as_bytes(std::span(direction)), said(hello), bytes_of(cipher)})
      info.insert(info.end(), piece.begin(), piece.end());
    protect::hkdf_expand(pseudorandom_key, info, secret);
  };
  protect::RecordSecrets secrets;
  secrets.level = hello.protection;
  secrets.cipher = cipher;
  const bool connecting_end = hello.from == job.self().value;
  // As long as each other, so that no info is another one's.
  expand("tensorlane data 3 to the server", connecting_end ? secrets.send : secrets.receive);
  expand("tensorlane data 3 to the client", connecting_end ? secrets.receive : secrets.send);
  return secrets;
}

bool same_mac(const Mac& a, const Mac& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Text pack_text(const std::string& text) {
  Text packed{};
  std::memcpy(packed.data(), text.data(), std::min(text.size(), packed.size() - 1));
  return packed;
}

std::string unpack_text(const Text& text) {
  std::string unpacked(text.data(), ::strnlen(text.data(), text.size()));
  for (char& c : unpacked) {
    if (c < ' ' || c > '~') c = '?';
  }
  return unpacked;
}

std::string text_that_fits(const Status& error) {
  for (const Status& part : {error, Status(error.code(), error.what(), {}, error.fix())}) {
    if (std::string text = part.to_string(); text.size() < std::tuple_size_v<Text>) return text;
  }
  return error.what();
}

Code refusal_code(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return Code::kOk;
    case Refusal::kNotTensorlane:
      return Code::kCorrupt;
    case Refusal::kVersion:
      return Code::kVersionMismatch;
    case Refusal::kClass:
      return Code::kMismatch;
    case Refusal::kJob:
      return Code::kNotFound;
    case Refusal::kEpochNewer:
      return Code::kMismatch;
    case Refusal::kEpochOlder:
      return Code::kMismatch;
    case Refusal::kHost:
      return Code::kMismatch;
    case Refusal::kKey:
      return Code::kPermissionDenied;
    case Refusal::kNotAnswered:
    case Refusal::kNotYet:
      return Code::kTimedOut;
    case Refusal::kParameters:
    case Refusal::kProtection:
      return Code::kMismatch;
  }
  return Code::kCorrupt;
}

std::string refusal_fix(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "";
    case Refusal::kNotTensorlane:
      return "let only tensorlaned use the data ports of fabric.yaml";
    case Refusal::kVersion:
      return "install the same tensorlane version on every host";
    case Refusal::kClass:
      return "use the same fabric.yaml on every host";
    case Refusal::kJob:
      return "look at the log of that host for how the job ended";
    case Refusal::kEpochNewer:
    case Refusal::kEpochOlder:
      return "stop what is left of the job's previous start";
    case Refusal::kHost:
      return "use the same fabric.yaml on every host and check the addresses in it";
    case Refusal::kKey:
      return "find out who that is: hosts of the job get its keys from their leader";
    case Refusal::kNotAnswered:
    case Refusal::kNotYet:
      return "look at the load of that host and at its log";
    case Refusal::kParameters:
      return "use the same `transport`, `on_lost_flow` and tensorlane version on every host";
    case Refusal::kProtection:
      return "use the same fabric.yaml, with one `data_protection`, on every host";
  }
  return "install the same tensorlane version on every host";
}

}  // namespace tensorlane::handshake
