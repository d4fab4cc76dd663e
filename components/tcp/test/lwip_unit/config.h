/* lwIP's unit tests include one; nothing is configured. */
