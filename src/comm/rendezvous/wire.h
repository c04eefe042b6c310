// The wire format between the store's server and clients (little-endian numbers), and its limits.
//
//   server: Hello            magic, version, nonce
//   client: Introduction     magic, version, rank, world, nonce, code = HMAC(token, both nonces, rank, world)
//   server: Verdict          status, code = HMAC(token, both nonces), length and text of a refusal
//   then frames both ways    length, type, request, fields (strings: length and bytes; numbers: 8 bytes)
//
// The token itself is never sent. Each side proves with a code that it has the token.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files/sha256.h"

namespace primus::comm::wire {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr char kServerMagic[9] = "PRIMUSRV", kClientMagic[9] = "PRIMUSCL";
inline constexpr std::size_t kNonce = 16;
inline constexpr std::size_t kHelloBytes = 8 + 4 + kNonce;
inline constexpr std::size_t kIntroductionBytes = 8 + 4 + 4 + 4 + kNonce + 32;
inline constexpr std::size_t kVerdictBytes = 4 + 32 + 4;
enum class Verdict : std::uint32_t { kWelcome = 0, kRefused = 1, kWrongToken = 2 };

inline constexpr std::size_t kMaxKey = 512, kMaxValue = 1 << 20, kMaxText = 16 << 10;
inline constexpr std::size_t kMaxFrame = kMaxKey + kMaxValue + 64;
inline constexpr std::size_t kMaxStored = 256U << 20;  // all keys and values together

enum class Type : std::uint8_t {
  // Requests. The comments list the fields of the request, and then the fields of the reply.
  kSet = 1,  // key, value                        -
  kGet,      // key                               0 or 1 (exists), value
  kWait,     // key, milliseconds                 0 or 1 (came in time), value
  kAdd,      // key, number                       the sum
  kAsk,      // group, milliseconds               one string per rank; empty: no answer
  kAbort,    // reason, ErrorKind                 no reply
  kLeave,    // -                                 no reply: this rank ends normally
  kAnswer,   // number of the question, string    no reply
  kErase,    // key                               -
  // Sent by the server.
  kReply = 64,
  kAborted,   // reason, ErrorKind
  kQuestion,  // number, group: requests the rank's status
};

class Writer {
 public:
  explicit Writer(Type type, std::uint64_t request = 0) {
    text_.resize(4);
    text_ += static_cast<char>(type);
    number(request);
  }
  Writer& number(std::uint64_t value) {
    char bytes[8];
    std::memcpy(bytes, &value, 8);
    text_.append(bytes, 8);
    return *this;
  }
  Writer& string(std::string_view value) {
    const auto size = static_cast<std::uint32_t>(value.size());
    char bytes[4];
    std::memcpy(bytes, &size, 4);
    text_.append(bytes, 4).append(value);
    return *this;
  }
  // Returns the frame, which begins with its length.
  std::string frame() {
    const auto size = static_cast<std::uint32_t>(text_.size() - 4);
    std::memcpy(text_.data(), &size, 4);
    return std::move(text_);
  }

 private:
  std::string text_;
};

// Reads a frame's body. For a missing or too long field, returns an empty value and sets ok() to false.
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}
  Type type() {
    const std::string_view byte = take(1);
    return byte.empty() ? Type{} : static_cast<Type>(byte[0]);
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    const std::string_view bytes = take(8);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), 8);
    return value;
  }
  std::string string(std::size_t limit) {
    std::uint32_t size = 0;
    const std::string_view bytes = take(4);
    if (!bytes.empty()) std::memcpy(&size, bytes.data(), 4);
    if (size > limit) ok_ = false;
    return ok_ && size != 0 ? std::string(take(size)) : std::string();
  }
  bool ok() const { return ok_; }

 private:
  std::string_view take(std::size_t bytes) {
    if (!ok_ || rest_.size() < bytes) {
      ok_ = false;
      return {};
    }
    const std::string_view result = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return result;
  }
  std::string_view rest_;
  bool ok_ = true;
};

inline ErrorKind error_kind(std::uint64_t number) {
  return number <= static_cast<std::uint64_t>(ErrorKind::kUnsupported) ? static_cast<ErrorKind>(number)
                                                                       : ErrorKind::kIo;
}

inline std::string u32(std::uint32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}
inline std::uint32_t u32_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 4);
  return value;
}

inline std::string client_code(std::string_view token, std::string_view server_nonce,
                               std::string_view client_nonce, std::uint32_t rank, std::uint32_t world) {
  std::string text = "client ";
  text.append(server_nonce).append(client_nonce).append(u32(rank)).append(u32(world));
  return std::string(as_text(hmac_sha256(token, text)));
}
inline std::string server_code(std::string_view token, std::string_view server_nonce,
                               std::string_view client_nonce) {
  std::string text = "server ";
  text.append(client_nonce).append(server_nonce);
  return std::string(as_text(hmac_sha256(token, text)));
}

}  // namespace primus::comm::wire
