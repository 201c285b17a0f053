#include "daemon/transport/handshake/handshake.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::handshake {
namespace {

Mac mac_of(const Job& job, std::string_view role, const Hello& hello, const Nonce& server_nonce, Parameters first = {},
           Parameters second = {}) {
  crypto_auth_hmacsha256_state state;
  const auto* key = reinterpret_cast<const unsigned char*>(job.secret().data());
  crypto_auth_hmacsha256_init(&state, key, job.secret().size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(role.data()), role.size());
  const auto bytes = bytes_of(hello);
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  crypto_auth_hmacsha256_update(&state, server_nonce.data(), server_nonce.size());
  for (const Parameters parameters : {first, second}) {
    crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(parameters.data()), parameters.size());
  }
  Mac mac;
  static_assert(kMacBytes == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_final(&state, mac.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}

}  // namespace

Job::~Job() {
  sodium_memzero(credentials_.secret.data(), credentials_.secret.size());
}

Nonce random_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Hello make_hello(const Job& job, HostIndex to, ClassId cls, std::uint16_t parameter_bytes) {
  Hello hello;
  hello.job = job.id().value;
  hello.epoch = job.epoch().value;
  hello.from = job.self().value;
  hello.to = to.value;
  hello.cls = cls.value;
  hello.rail = job.rail().value;
  hello.parameter_bytes = parameter_bytes;
  hello.nonce = random_nonce();
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

Verdicted check_hello(const Hello& hello, ClassId cls, std::uint16_t parameter_bytes, const JobTable& jobs) {
  if (Verdicted head = check_head(hello.head); !head.ok()) return head;
  if (hello.parameter_bytes != parameter_bytes) {
    return {Refusal::kParameters,
            fmt::format("{} bytes of parameters, expected {}", hello.parameter_bytes, parameter_bytes)};
  }
  if (hello.cls != cls.value) {
    return {Refusal::kClass,
            fmt::format("a flow of class {} on the port of class {}", class_name(ClassId(hello.cls)), class_name(cls))};
  }
  const auto found = jobs.find(JobId(hello.job));
  if (found == jobs.end()) return {Refusal::kJob, fmt::format("job {:#018x} is not known to this host", hello.job)};
  const Job& job = *found->second;
  if (hello.epoch != job.epoch().value) {
    return {hello.epoch > job.epoch().value ? Refusal::kEpochNewer : Refusal::kEpochOlder,
            fmt::format("epoch {} of the job, this host has epoch {}", hello.epoch, job.epoch().value)};
  }
  if (hello.to != job.self().value) {
    return {Refusal::kHost, fmt::format("a flow to host {}, this is host {}", hello.to, job.self().value)};
  }
  if (hello.from >= hello.to) {
    return {Refusal::kHost,
            fmt::format("a flow from host {} to host {}: the lower index connects", hello.from, hello.to)};
  }
  if (hello.rail != job.rail().value) {
    return {Refusal::kHost, fmt::format("a flow of rail {}, this is rail {} of host {}", hello.rail, job.rail().value,
                                        job.self().value)};
  }
  return {};
}

Mac server_mac(const Job& job, const Hello& hello, const Nonce& server_nonce) {
  return mac_of(job, "tensorlane data server 1", hello, server_nonce);
}

Mac client_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client) {
  return mac_of(job, "tensorlane data client 1", hello, server_nonce, client);
}

Mac parameter_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client, Parameters server) {
  return mac_of(job, "tensorlane data parameters 1", hello, server_nonce, client, server);
}

Mac exchange_secret(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client,
                    Parameters server) {
  return mac_of(job, "tensorlane data exchange 1", hello, server_nonce, client, server);
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
    case Refusal::kSecret:
      return Code::kPermissionDenied;
    case Refusal::kNotAnswered:
    case Refusal::kNotYet:
      return Code::kTimedOut;
    case Refusal::kParameters:
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
      return "start the job on that host, or wait until it has ended there";
    case Refusal::kEpochNewer:
    case Refusal::kEpochOlder:
      return "stop what is left of the job's previous start";
    case Refusal::kHost:
      return "use the same fabric.yaml on every host and check the addresses in it";
    case Refusal::kSecret:
      return "give every rank of the job the same secret";
    case Refusal::kNotAnswered:
    case Refusal::kNotYet:
      return "look at the load of that host and at its log";
    case Refusal::kParameters:
      return "use the same `transport`, `on_lost_flow` and tensorlane version on every host";
  }
  return "install the same tensorlane version on every host";
}

}  // namespace tensorlane::handshake
