// The handshake in front of every data connection (laws 14, 23): both ends prove that they hold the key of their pair
// of hosts for this epoch of the job, for this class and rail, over a nonce of each end. Pure: no socket, no clock.
//
//   connecting end                               accepting end
//   Hello {who I am, which flow, nonce_a}    ->
//                                            <-  Challenge {nonce_b}
//   Proof {}                                 ->
//                                            <-  Verdict {}
//
// Every message ends with a MAC under the pair's key, over its own bytes, its role and what came before: the Hello, and
// nonce_b once it is known. So every word after the Hello is fresh, and no end's own answer can be reflected to it.
//
// **A stranger learns nothing.** The accepting end closes without a word when a Hello does not prove the pair's key,
// whatever is wrong with it: an unknown job, another epoch, another host, a wrong MAC. It computes a MAC in every case.
// Its log says what was wrong, and who came. Reasons travel only in messages with a right MAC. The one exception is the
// version: the first eight bytes of every message (Head) never change, and an end of another version is told the
// version that this one speaks, so that a daemon that was not updated can be named.
//
// A transport that needs to know more of the other end (queue pairs, addresses) sends parameters along, as many bytes
// as the Hello says; MACs from there on cover them:
//
//   Proof {}, parameters                     ->
//                                            <-  Verdict {}, parameters
//   Ready {}                                 ->
//
// Where records protect the flow that follows (daemon/transport/protect), both ends must say the same level, the Hello
// says which ciphers the connecting end has, and the Challenge which of them is used. The keys of the records come from
// the key of the pair and both nonces.
//
// The accepting end answers when it can receive, which may take the transport a while (Exchange::may_answer). After
// Ready the connecting end can receive, so the accepting end begins to send only then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/protect/record_cipher.h"

namespace tensorlane::handshake {

inline constexpr std::uint32_t kHandshakeMagic = 0x48534c54;  // "TLSH"
inline constexpr std::uint16_t kHandshakeVersion = 3;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kMaxParameterBytes = 512;

// Why an end refuses. Numbers are stable: they are on the wire, except for those that are marked: strangers are not
// told.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kNotTensorlane = 1,  // wrong magic; not told
  kVersion = 2,
  kClass = 3,        // the flow's class is not this listener's
  kJob = 4,          // told: it has ended here. Not told: it is not known here (yet)
  kEpochNewer = 5,   // the connecting end's epoch is newer than ours; not told
  kEpochOlder = 6,   // the connecting end's epoch is older than ours; not told
  kHost = 7,         // told: another rail. Not told: we are not the host it meant, or it must not be the one to connect
  kKey = 8,          // a wrong MAC; not told
  kNotAnswered = 9,  // the next message did not come in time
  kParameters = 10,  // the ends' transports do not fit each other
  kNotYet = 11,      // the flow is there but cannot go on yet: worth another try
  kProtection = 12,  // the ends protect data at different levels, or have no cipher in common
};

// Whether the connecting end should try again until its deadline.
constexpr bool worth_retrying(Refusal refusal) {
  return refusal == Refusal::kNotAnswered || refusal == Refusal::kNotYet;
}

using Nonce = std::array<std::uint8_t, kNonceBytes>;
using Mac = std::array<std::uint8_t, kMacBytes>;
using Text = std::array<char, 152>;

struct Head {
  std::uint32_t magic = kHandshakeMagic;
  std::uint16_t version = kHandshakeVersion;
  Refusal refusal = Refusal::kNone;
  std::uint8_t reserved = 0;
};
static_assert(sizeof(Head) == 8);

// Of each message, the MAC is the last member, and covers all the others.
struct Hello {
  Head head;
  std::uint64_t job = 0;
  std::uint32_t epoch = 0;
  std::uint16_t from = 0, to = 0;
  std::uint8_t cls = 0;
  std::uint8_t rail = 0;
  std::uint16_t parameter_bytes = 0;  // of either end
  DataProtection protection = DataProtection::kNone;
  protect::Ciphers ciphers = 0;  // 0 without protection
  std::uint16_t reserved_too = 0;
  Nonce nonce{};
  Mac mac{};
};
static_assert(sizeof(Hello) == 96);

// The server's first answer. `text` is the reason of a refusal.
struct Challenge {
  Head head;
  protect::Cipher cipher = protect::Cipher::kNone;  // of the records; kNone without protection
  std::array<std::uint8_t, 7> reserved{};
  Nonce nonce{};
  Text text{};
  Mac mac{};
};
static_assert(sizeof(Challenge) == 232);

struct Proof {
  Head head;
  Mac mac{};
};
static_assert(sizeof(Proof) == 40);

struct Verdict {
  Head head;
  Text text{};
  Mac mac{};
};
static_assert(sizeof(Verdict) == 192);

struct Ready {
  Head head;
  Mac mac{};
};
static_assert(sizeof(Ready) == 40);

// A job's credentials. Keys are wiped from memory with the last holder.
class Job {
 public:
  explicit Job(ports::JobCredentials credentials) : credentials_(std::move(credentials)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return credentials_.job; }
  Epoch epoch() const { return credentials_.epoch; }
  HostIndex self() const { return credentials_.self; }
  RailIndex rail() const { return credentials_.rail; }
  // The key of this host and `peer`; null for this host itself and for one that is not in the job.
  const ports::PairKey* key(HostIndex peer) const {
    return peer.value < credentials_.keys.size() && peer != self() ? &credentials_.keys[peer.value] : nullptr;
  }
  Duration resume_within() const { return credentials_.resume_within; }

 private:
  const ports::JobCredentials credentials_;
};
using JobPtr = std::shared_ptr<const Job>;

// The jobs of one transport. One thread.
class JobTable {
 public:
  // Keys of jobs that have ended are kept for so many, so that a peer of such a job can be told that it has ended.
  static constexpr std::size_t kMaxEnded = 16;

  // Replaces an earlier epoch of the job.
  void add(JobPtr job);
  void remove(JobId job);
  bool contains(JobId job) const { return live_.contains(job); }
  // Null: not there.
  JobPtr find(JobId job) const;
  JobPtr find_ended(JobId job, Epoch epoch) const;

 private:
  std::map<JobId, JobPtr> live_;
  std::deque<JobPtr> ended_;  // oldest first
};

// How this end protects the flows of a transport.
struct Protection {
  DataProtection level = DataProtection::kNone;
  protect::Ciphers ciphers = 0;  // that it has
};

// What a transport adds to the handshake of one flow. Made by either end once the other one has proved itself.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // This end's parameters, ExchangeFactory::bytes_for() of them; makes what they describe. The accepting end is shown
  // those of the peer, for the connecting end `peer` is empty. An error is told to the peer; after kInProgress it asks
  // again, as after one of accept().
  virtual Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) = 0;
  // A secret that the two ends of this handshake alone have, and no other handshake; comes before accept().
  virtual void bind(const Mac& /*secret*/) {}
  // The peer's parameters; comes after offer(). An error is told to the peer.
  virtual Status accept(std::span<const std::byte> peer) = 0;
  // Of the accepting end, after accept(): whether it may send its verdict, upon which the peer goes on. It asks again
  // when whoever made the exchange calls Connector::settle(). An error is told to the peer, which asks again after
  // kInProgress.
  virtual Result<bool> may_answer() { return true; }
  // Whether what accept() has begun is done. The connecting end is ready only then; it asks again when whoever made the
  // exchange calls Connector::settle(). The accepting end asks when the peer is ready: then it has to be done. After an
  // error of kUnavailable the connecting end tries again; any other is told to the peer.
  virtual Result<bool> settled() { return true; }
  // Why may_answer() and settled() have not come true yet, for whoever waits in vain: kInProgress. Ok: not known.
  virtual Status delay() const { return {}; }
  // Of the connecting end, after offer(): a descriptor that travels with the parameters; negative: none. Stays the
  // exchange's. Unix sockets only.
  virtual int descriptor() const { return -1; }
  // Of the accepting end, before offer(): the descriptor that came; invalid when none did.
  virtual void take_descriptor([[maybe_unused]] Fd descriptor) {}
};
struct ExchangeFactory {
  std::uint16_t bytes = 0;  // 0: nothing is exchanged
  std::function<std::unique_ptr<Exchange>(const ports::FlowKey&, const JobPtr&)> make;
  std::uint16_t resuming_bytes = 0;  // more, for flows of jobs that resume them
  Protection protection = {};

  // At most kMaxParameterBytes.
  std::uint16_t bytes_for(const Job& job) const {
    return static_cast<std::uint16_t>(bytes + (job.resume_within().value > 0 ? resuming_bytes : 0));
  }
};

// A reason with its text for people; ok when refusal is kNone.
struct Verdicted {
  Refusal refusal = Refusal::kNone;
  std::string text;
  bool ok() const { return refusal == Refusal::kNone; }
};

// Fills a nonce from the system's generator. Who makes a transport has called sodium_init().
Nonce random_nonce();
// With its MAC. `to` is a host of the job, and not this one.
Hello make_hello(const Job& job, HostIndex to, ClassId cls, std::uint16_t parameter_bytes = 0,
                 const Protection& protection = {});

// Magic and version of any message that arrived.
Verdicted check_head(const Head& head);
// Whether the hello proves that it comes from a host of a job that is known here: job, epoch, hosts, MAC. The reason is
// for the log of this host, never for whoever came. Takes the same computation whatever is wrong. `job` becomes the one
// that is meant when all is right, also one that has ended.
Verdicted check_peer(const Hello& hello, const JobTable& jobs, JobPtr* job);
// Whether a flow like this, of such a peer, may be accepted on the listener of `cls`: the job has not ended, rail,
// class, protection, parameters, in that order. The reason may be told.
Verdicted check_flow(const Hello& hello, ClassId cls, const ExchangeFactory& exchanges, const JobPtr& job,
                     const JobTable& jobs);
// The cipher of a flow of such a peer: the best that both ends have. kNone without protection, or where there is none.
protect::Cipher common_cipher(const Hello& hello, const Protection& protection);

// The MACs, each of the message that it is named after: HMAC-SHA256 under the key of the pair of hosts that the hello
// names. Parameters are those of the ends that have sent theirs with the message or before it; a Proof or a Verdict
// that refuses covers none.
using Parameters = std::span<const std::byte>;
Mac hello_mac(const Job& job, const Hello& hello);
Mac challenge_mac(const Job& job, const Hello& hello, const Challenge& challenge);
Mac proof_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Proof& proof,
              Parameters client = {});
Mac verdict_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Verdict& verdict,
                Parameters client = {}, Parameters server = {});
Mac ready_mac(const Job& job, const Hello& hello, const Nonce& server_nonce, const Ready& ready, Parameters client,
              Parameters server);
// What Exchange::bind() is given. It never crosses the wire.
Mac exchange_secret(const Job& job, const Hello& hello, const Nonce& server_nonce, Parameters client,
                    Parameters server);
// What the keys of the flow's records come from: HKDF-SHA256 (RFC 5869) of the key of the pair, salted with the nonces
// of both ends, for either direction with the whole hello (level, job, epoch, hosts, class, rail) as its context.
protect::RecordSecrets record_secrets(const Job& job, const Hello& hello, const Nonce& server_nonce,
                                      protect::Cipher cipher);
// In constant time.
bool same_mac(const Mac& a, const Mac& b);

// Texts cross the wire as at most 151 bytes; what is not printable reads as '?'.
Text pack_text(const std::string& text);
std::string unpack_text(const Text& text);
// As much of an error as a Text holds, in whole parts: all of it, or what and what to do about it, or what alone.
std::string text_that_fits(const Status& error);

// The Code that a refusal becomes in a Status, and what to do about it.
Code refusal_code(Refusal refusal);
std::string refusal_fix(Refusal refusal);

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  static_assert(std::has_unique_object_representations_v<Message>, "padding would go over the wire");
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace tensorlane::handshake
